//! The language, operation by operation; what is wrong with what is not of it; garbage.

use mm_scenario::{
    Advice, FileBacking, FolioSize, MapSource, OP_NAMES, Op, PinMethod, Prot, Scenario, Sharing,
    ShmemPolicy, ThpPolicy, TouchOrder, UffdAction, UffdMode, WINDOW_PAGES, Windows, corpus,
};
use proptest::prelude::*;

fn parse(text: &str) -> Scenario {
    Scenario::parse("t", text).unwrap()
}

/// A process, regions `a` (64 pages) and `b`, a file `f` and a pin `x`.
const PRELUDE: &str = "\
file f memfd 64 fill=1
mmap p0 a 64 anon rw private at=3
mmap p0 b 16 anon rw shared
pin p0 a x uring
";

/// The operation of a line after the prelude.
#[track_caller]
fn op(line: &str) -> Op {
    let mut scenario = parse(&format!("{PRELUDE}{line}"));
    scenario.ops.pop().unwrap().op
}

/// What is wrong with a line after the prelude.
#[track_caller]
fn wrong(line: &str) -> String {
    let error = Scenario::parse("dir/t.scn", &format!("{PRELUDE}{line}\n")).unwrap_err();
    let text = error.to_string();
    assert_eq!(text.lines().count(), 1, "{text}");
    text.strip_prefix("dir/t.scn:5: ").unwrap_or_else(|| panic!("no position: {text}")).to_owned()
}

#[test]
fn set_up() {
    let scenario = parse(
        "thp global always\nthp 16kB inherit\n# comment\n\nshmem 8kB within_size\nshmem global advise\n\
         swap 64M\nfile f tmpfs:advise 3 fill=9 bulk\nfile g ext4 0\nstats\nthp 2048kB never\n",
    );
    assert_eq!(scenario.setup().len(), 7);
    assert_eq!(scenario.body().len(), 2);
    let ops: Vec<&Op> = scenario.ops.iter().map(|line| &line.op).collect();
    assert_eq!(*ops[0], Op::Thp { size: FolioSize::Global, policy: ThpPolicy::Always });
    assert_eq!(*ops[1], Op::Thp { size: FolioSize::Order(2), policy: ThpPolicy::Inherit });
    assert_eq!(*ops[2], Op::Shmem { size: FolioSize::Order(1), policy: ShmemPolicy::WithinSize });
    assert_eq!(*ops[3], Op::Shmem { size: FolioSize::Global, policy: ShmemPolicy::Advise });
    assert_eq!(*ops[4], Op::Swap { pages: Some(16384) });
    let Op::File { file, backing, pages, fill, bulk } = *ops[5] else { panic!() };
    assert_eq!(scenario.file_name(file), "f");
    assert_eq!((backing, pages, fill, bulk), (FileBacking::TmpfsAdvise, 3, Some(9), true));
    assert_eq!(*ops[8], Op::Thp { size: FolioSize::Order(9), policy: ThpPolicy::Never });
    assert_eq!(scenario.ops[2].line_no, 5);
    assert_eq!(op("swap off"), Op::Swap { pages: None });
}

#[test]
fn page_sizes() {
    assert_eq!(parse("stats\n").page_size(), 4096);
    let scenario =
        parse("# text\npagesize 64kB\nthp 2048kB always\nmmap p0 a 1M anon rw private\n");
    assert_eq!(scenario.page_size(), 64 << 10);
    assert_eq!(scenario.setup().len(), 1);
    let Op::Thp { size, .. } = scenario.ops[0].op else { panic!() };
    assert_eq!(size, FolioSize::Order(5));
    let Op::Mmap { pages, .. } = scenario.ops[1].op else { panic!() };
    assert_eq!(pages, 16);
    let wrong = |text: &str| Scenario::parse("t", text).unwrap_err().to_string();
    assert_eq!(wrong("stats\npagesize 16kB\n"), "t:2: pagesize: only as the first operation");
    assert_eq!(
        wrong("pagesize 16kB\npagesize 16kB\n"),
        "t:2: pagesize: only as the first operation"
    );
    assert_eq!(
        wrong("pagesize 8kB\n"),
        "t:1: pagesize: unknown size `8kB`, expected one of: 4kB 16kB 64kB"
    );
    assert!(wrong("pagesize 16kB x\n").contains("`x`"));
    assert!(wrong("pagesize\n").contains("missing"));
    let odd = wrong("pagesize 16kB\nmmap p0 a 20k anon rw private\n");
    assert!(odd.ends_with("is not a whole number of 16384-byte pages"), "{odd}");
    assert!(wrong("pagesize 16kB\nthp 16kB always\n").contains("64kB 128kB"));
}

#[test]
fn processes() {
    let scenario = parse("fork p1 p0\nfork c.2 p1\nexit p1\nfork p1 p0\nexit p0\nfaults p1\n");
    let procs: Vec<_> = scenario
        .ops
        .iter()
        .map(|line| match line.op {
            Op::Fork { child, parent } => (scenario.proc_name(child), parent.index()),
            Op::Exit { proc } | Op::Faults { proc } => ("", proc.index()),
            _ => panic!(),
        })
        .collect();
    assert_eq!(procs, [("p1", 0), ("c.2", 1), ("", 1), ("p1", 0), ("", 0), ("", 3)]);
}

/// A narrow window is too small for some regions, and a small address space for some windows.
#[test]
fn windows_hold_what_lines_name() {
    let scenario = parse(
        "mmap p0 a 16384 anon rw private\nmmap p0 b 16384 anon rw private at=1\n\
         mmap p0 c 1 anon rw private\nread p0 c:16383+2\n",
    );
    let hold = |w: Windows, end| -> Vec<_> {
        scenario.regions().map(|(_, region)| w.hold(region, end)).collect()
    };
    assert_eq!(hold(Windows::WIDE, 1 << 47), [true, true, true]);
    assert_eq!(hold(Windows::NARROW, 1 << 30), [true, false, false]);
    assert_eq!(hold(Windows::NARROW, 0x13ff_ffff), [false, false, false]);
    for (end, windows) in [((1 << 47) - 4096, Windows::WIDE), (1 << 46, Windows::NARROW)] {
        assert_eq!(Windows::below(end), windows);
    }
}

/// Windows go by the order in which `mmap` and `mremap ... move` first mention a name.
#[test]
fn windows() {
    let scenario = parse(
        "mmap p0 z 1 anon rw private at=5\nmremap p0 z move y at=504 to=2\nmmap p0 z 9 anon r private\n\
         mmap p0 x 1 anon none private\n",
    );
    let regions: Vec<_> = scenario
        .regions()
        .map(|(_, r)| (r.name.as_str(), Windows::WIDE.address(r, 1), Windows::NARROW.address(r, 1)))
        .collect();
    assert_eq!(
        regions,
        [
            ("z", 0x1000_0000_0000 + 6 * 4096, 0x1000_0000 + 6 * 4096),
            ("y", 0x1000_4000_0000 + 505 * 4096, 0x1400_0000 + 505 * 4096),
            ("x", 0x1000_8000_0000 + 4096, 0x1800_0000 + 4096),
        ]
    );
    let Op::MremapMove { range, to, to_page, dontunmap, .. } = scenario.ops[1].op else { panic!() };
    assert_eq!((range.pages, to.index(), to_page, dontunmap), (1, 1, 2, false));
}

/// A name alone is the extent of the region at that line.
#[test]
fn ranges() {
    let range = |line: &str| match op(line) {
        Op::Read { range, .. } | Op::Munmap { range, .. } => {
            (range.first, range.pages, range.stride)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(range("read p0 a"), (0, 64, 1));
    assert_eq!(range("read p0 a:7"), (7, 1, 1));
    assert_eq!(range("read p0 a:7+9"), (7, 9, 1));
    assert_eq!(range("read p0 a:7+9/4"), (7, 9, 4));
    assert_eq!(range("munmap p0 a:0+3"), (0, 3, 1));
    assert_eq!(range("mmap p0 a 32 anon rw private\nread p0 a"), (0, 64, 1));
    assert_eq!(range("mmap p0 a 80 anon rw private\nread p0 a"), (0, 80, 1));
    assert_eq!(range("mremap p0 a resize 24\nread p0 a"), (0, 24, 1));
    assert_eq!(range("mremap p0 a:0+20 move c to=4\nread p0 c"), (0, 24, 1));

    let Op::Read { range, order, .. } = op("read p0 a:7+9/4 rev") else { panic!() };
    assert_eq!(range.iter().collect::<Vec<_>>(), [7, 11, 15]);
    assert_eq!(order, TouchOrder::Descending);
    assert_eq!(range.in_order(order).collect::<Vec<_>>(), [15, 11, 7]);
    assert_eq!((range.after(2), range.end()), (8, 16));
}

#[test]
fn counts() {
    for (count, pages) in [("16", 16), ("16k", 4), ("2M", 512), ("1G", WINDOW_PAGES)] {
        let Op::Mmap { pages: parsed, .. } = op(&format!("mmap p0 c {count} anon r private"))
        else {
            panic!()
        };
        assert_eq!(parsed, pages, "{count}");
    }
}

#[test]
fn memory_operations() {
    let Op::Mmap { source, prot, sharing, noreserve, .. } =
        op("mmap p0 c 8 anon rwx shared noreserve at=3")
    else {
        panic!()
    };
    assert_eq!((source, prot), (MapSource::Anon, Prot::all()));
    assert_eq!((sharing, noreserve), (Sharing::Shared, true));
    let shstk = |line: &str| matches!(op(line), Op::Mmap { shstk: true, .. });
    assert!(shstk("mmap p0 c 8 anon rw private shstk at=3"));
    assert!(!shstk("mmap p0 c 8 anon rw private"));
    // A shadow stack is private, anonymous, readable and writable.
    for other in ["anon rw shared", "anon r private", "anon rwx private", "file:f rw private"] {
        assert!(wrong(&format!("mmap p0 c 8 {other} shstk")).contains("shstk"), "{other}");
    }
    let Op::Mmap { source, prot, .. } = op("mmap p0 c 8 file:f none private foff=5 at=3") else {
        panic!()
    };
    assert!(matches!(source, MapSource::File { first_page: 5, .. }));
    assert!(prot.is_empty());
    assert!(
        matches!(op("mprotect p0 a wr"), Op::Mprotect { prot, .. } if prot == Prot::READ | Prot::WRITE)
    );
    for advice in Advice::ALL {
        let parsed = op(&format!("madvise p0 a:1+2 {advice}"));
        assert!(matches!(parsed, Op::Madvise { advice: parsed, .. } if parsed == *advice));
    }
    for method in PinMethod::ALL {
        let parsed = op(&format!("pin p0 a:1+2 y {method}"));
        assert!(matches!(parsed, Op::Pin { method: parsed, .. } if parsed == *method));
    }
    assert!(matches!(op("mlock p0 a onfault"), Op::Mlock { onfault: true, .. }));
    assert!(matches!(op("write p0 a:0+4/2 65535 rev"), Op::Write { value: u16::MAX, .. }));
    assert!(matches!(op("dread p0 a f foff=2"), Op::Dread { file_page: 2, .. }));
    assert!(matches!(op("dwrite p0 a f"), Op::Dwrite { file_page: 0, .. }));
    assert!(matches!(op("pinwrite p0 x 3"), Op::Pinwrite { value: 3, .. }));
    let register = op("uffd p0 a register async wp");
    let Op::Uffd { action: UffdAction::Register(mode), .. } = register else { panic!() };
    assert_eq!(mode, UffdMode::WP | UffdMode::WP_ASYNC);
    assert!(matches!(op("uffd p0 a unprotect"), Op::Uffd { action: UffdAction::Unprotect, .. }));
    let action = |text: &str| match op(text) {
        Op::Uffd { action, .. } => action,
        other => panic!("{other:?}"),
    };
    assert_eq!(action("uffd p0 a copy 7 wp"), UffdAction::Copy { value: 7, wp: true });
    assert_eq!(action("uffd p0 a:1 copy 7"), UffdAction::Copy { value: 7, wp: false });
    assert_eq!(action("uffd p0 a zeropage"), UffdAction::ZeroPage);
    assert_eq!(action("uffd p0 a continue"), UffdAction::Continue { wp: false });
    assert_eq!(action("uffd p0 a continue wp"), UffdAction::Continue { wp: true });
    assert_eq!(action("uffd p0 a poison"), UffdAction::Poison);
    let UffdAction::Move { to_page, holes, .. } = action("uffd p0 a move a to=9 holes") else {
        panic!()
    };
    assert_eq!((to_page, holes), (9, true));
    assert_eq!(op("ksmscan"), Op::Ksmscan { scans: 3 });
    assert_eq!(op("ksmscan 1"), Op::Ksmscan { scans: 1 });
    assert!(matches!(op("truncate f 0"), Op::Truncate { pages: 0, .. }));
    assert!(matches!(op("punch f 3+4"), Op::Punch { first_page: 3, pages: 4, .. }));
    assert_eq!(op("note  two \t words # three"), Op::Note { text: "two words".into() });
}

#[test]
fn observations() {
    let Op::Observe { targets } = op("observe p0 a p0 b:1+2 p0 a:9") else { panic!() };
    assert_eq!(targets.len(), 3);
    assert_eq!(targets[1].range.end(), 3);
    assert!(matches!(op("expect p0 a:0+8/2 0"), Op::Expect { value: 0, fill: false, .. }));
    assert!(matches!(op("expect p0 a 2 fill"), Op::Expect { value: 2, fill: true, .. }));
    assert!(matches!(op("vmas p0 a"), Op::Vmas { .. }));
}

/// Each word of the language is understood, and an operation tells its word.
#[test]
fn each_operation_has_its_name() {
    let lines = "thp 16kB never|shmem 16kB never|swap off|file g ext4 1|fork p1 p0|exit p0|\
        mmap p0 c 1 anon r private|munmap p0 a|mprotect p0 a r|mremap p0 a resize 1|\
        madvise p0 a cold|mlock p0 a|munlock p0 a|clearrefs p0|read p0 a|write p0 a 1|fill p0 a 1|peek p0 a|\
        poke p0 a 1|pvread p0 a|pvwrite p0 a 1|dread p0 a f|dwrite p0 a f|pin p0 a y vmsplice|\
        unpin p0 x|pinread p0 x|pinwrite p0 x 1|uffd p0 a protect|ksmscan|fsync f|drop f|\
        truncate f 1|punch f 0+1|note|observe p0 a|faults p0|content p0 a|expect p0 a 1|\
        fcontent f|events p0|vmas p0 a|stats";
    let names: Vec<_> = lines.split('|').map(|line| op(line).name()).collect();
    assert_eq!(names, OP_NAMES);
    assert_eq!(op("mremap p0 a move b").name(), "mremap");
}

#[test]
fn pragmas() {
    let scenario = parse("#@top\nstats\n  #@seed003 {\"min\":1} \n#@seed003 no json\nstats");
    let pragma = |k: usize| {
        let pragma = &scenario.pragmas[k];
        (pragma.line_no, pragma.about_line, pragma.name.as_str(), pragma.text.as_str())
    };
    assert_eq!(pragma(0), (1, None, "top", ""));
    assert_eq!(pragma(1), (3, Some(2), "seed003", "{\"min\":1}"));
    assert_eq!(scenario.pragmas[1].replaced_keys().unwrap()["min"], 1);
    assert!(scenario.pragmas[2].replaced_keys().is_err());
    assert_eq!(scenario.ops.len(), 2);
}

/// The answer of a `fuse-w` is empty, and the others are read-only.
#[test]
fn only_registered_buffers_are_written_through() {
    for method in ["fuse-r", "fuse-w", "vmsplice"] {
        let text = format!("{PRELUDE}pin p0 a y {method}\npinwrite p0 y 1\n");
        let error = Scenario::parse("t", &text).unwrap_err();
        let said = format!("t:6: pinwrite: nothing is written through pin `y`, which is {method}");
        assert_eq!(error.to_string(), said);
    }
    parse(&format!("{PRELUDE}pin p0 a y fuse-w\npin p0 a y uring\npinwrite p0 y 1"));
}

#[test]
fn what_is_wrong_is_said() {
    for (line, what) in [
        ("frok p1 p0", "unknown operation `frok`"),
        ("fork p1", "fork: missing process"),
        ("mmap p0", "mmap: missing region"),
        ("observe", "observe: missing process"),
        ("observe p0 a p0", "observe: missing range"),
        ("stats now", "stats: unexpected word `now`"),
        ("read p0 a backwards", "read: unexpected word `backwards`"),
        ("read p0 a rev rev", "read: unexpected word `rev`"),
        ("mmap p0 c 1 anon r private foff=1", "mmap: unexpected word `foff=1`"),
        ("mmap p0 c 1 anon r private at", "mmap: unexpected word `at`"),
        ("mmap p0 c 1 anon r private at=1 at=1", "mmap: `at` given twice"),
        ("write p0 a x1", "write: bad value `x1`: not a number"),
        ("write p0 a -1", "write: bad value `-1`: not a number"),
        ("write p0 a 0", "write: value `0` out of range: 1 to 65535"),
        ("write p0 a 65536", "write: value `65536` out of range: 1 to 65535"),
        (
            "write p0 a 99999999999999999999999",
            "write: value `99999999999999999999999` out of range: 1 to 65535",
        ),
        ("mmap p0 c 0 anon r private", "mmap: size in pages `0` out of range: 1 to 262144"),
        ("mmap p0 c 2G anon r private", "mmap: size in pages `2G` out of range: 1 to 262144"),
        (
            "mmap p0 c 99999999999999999999G anon r private",
            "mmap: size in pages `99999999999999999999G` out of range: 1 to 262144",
        ),
        ("mmap p0 c k anon r private", "mmap: bad size in pages `k`: not a number"),
        ("mmap p0 c 1T anon r private", "mmap: bad size in pages `1T`: not a number"),
        (
            "mmap p0 c 3k anon r private",
            "mmap: size in pages `3k` is not a whole number of 4096-byte pages",
        ),
        ("mmap p0 c 2 anon r private at=262143", "mmap: at `262143` out of range: 0 to 262142"),
        (
            "mmap p0 a 1G anon r private",
            "mmap: end page of the region `262144` out of range: 1 to 262141",
        ),
        (
            "mmap p0 a 1 anon r private at=4",
            "mmap: region `a` starts at page 3 of its window, not at 4",
        ),
        (
            "mmap p0 c 1 anonymous r private",
            "mmap: unknown mapping `anonymous`, expected one of: anon file:F",
        ),
        ("mmap p0 c 1 file:g r private", "mmap: unknown file `g`"),
        ("mmap p0 c:d 1 anon r private", "mmap: `c:d` cannot be a region name"),
        (
            "mmap p0 c 1 anon rr private",
            "mmap: unknown protection `rr`, expected one of: none or letters of rwx",
        ),
        (
            "mmap p0 c 1 anon r mine",
            "mmap: unknown sharing `mine`, expected one of: private shared",
        ),
        (
            "thp global inherit",
            "thp: unknown policy `inherit`, expected one of: always madvise never",
        ),
        (
            "thp 16kB sometimes",
            "thp: unknown policy `sometimes`, expected one of: always madvise inherit never",
        ),
        (
            "thp 8kB never",
            "thp: unknown folio size `8kB`, expected one of: global 16kB 32kB 64kB 128kB 256kB 512kB 1024kB 2048kB",
        ),
        (
            "shmem 16kB madvise",
            "shmem: unknown policy `madvise`, expected one of: always inherit within_size advise never",
        ),
        ("swap 0", "swap: size in pages `0` out of range: 1 to 16777216"),
        ("file f memfd 1", "file: file `f` exists already"),
        (
            "file g tmpfs 1",
            "file: unknown backing `tmpfs`, expected one of: memfd tmpfs:always tmpfs:within_size tmpfs:advise tmpfs:never ext4",
        ),
        ("file g memfd 1 fill=0", "file: fill value `0` out of range: 1 to 65535"),
        ("fork p0 p0", "fork: process `p0` exists already"),
        ("fork p1 p1", "fork: unknown process `p1`"),
        ("exit p9", "exit: unknown process `p9`"),
        ("read p0 c", "read: unknown region `c`"),
        ("read p0 a:", "read: bad range `a:`: expected R, R:a, R:a+n or R:a+n/s"),
        ("read p0 a:1/2", "read: bad range `a:1/2`: expected R, R:a, R:a+n or R:a+n/s"),
        ("read p0 a:1+", "read: bad range `a:1+`: expected R, R:a, R:a+n or R:a+n/s"),
        ("read p0 a:1+1+1", "read: bad range `a:1+1+1`: expected R, R:a, R:a+n or R:a+n/s"),
        ("read p0 a:0+0", "read: number of pages `0` out of range: 1 to 262141"),
        ("read p0 a:0+4/0", "read: stride `0` out of range: 1 to 262144"),
        ("read p0 a:262141", "read: first page `262141` out of range: 0 to 262140"),
        ("madvise p0 a:0+4/2 cold", "madvise: no stride allowed, in range `a:0+4/2`"),
        ("observe p0 a:0+4/1", "observe: no stride allowed, in range `a:0+4/1`"),
        ("mremap p0 a grow 3", "mremap: unknown action `grow`, expected one of: move resize"),
        ("mremap p0 a:0+1 resize 3", "mremap: unknown region `a:0+1`"),
        (
            "pin p0 a y dma",
            "pin: unknown pin method `dma`, expected one of: uring fuse-r fuse-w vmsplice",
        ),
        ("unpin p0 y", "unpin: unknown pin `y`"),
        ("uffd p0 a register rp", "uffd: unexpected word `rp`"),
        (
            "uffd p0 a start",
            "uffd: unknown action `start`, expected one of: register protect unprotect unregister \
             copy zeropage continue poison move",
        ),
        ("ksmscan 0", "ksmscan: number of scans `0` out of range: 1 to 1000"),
        ("punch f 3", "punch: bad range `3`: expected R, R:a, R:a+n or R:a+n/s"),
        ("punch f 0+0", "punch: number of pages `0` out of range: 1 to 16777216"),
        ("w\u{fc}rfel p0", "unknown operation `w\u{fc}rfel`"),
        ("\u{1b}[31m\u{2028}", "unknown operation `\\u{1b}[31m\\u{2028}`"),
    ] {
        assert_eq!(wrong(line), what);
    }
    let long = wrong(&"x".repeat(5000));
    assert_eq!(long.len(), "unknown operation ``...".len() + 40);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any text is a scenario or has one line that says what is wrong.
    #[test]
    fn any_text(text in any::<String>()) {
        if let Err(error) = Scenario::parse("t", &text) {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    /// Lines made of the language's own words and of wild numbers, which reach further in.
    #[test]
    fn any_words(
        lines in prop::collection::vec(
            (
                prop::sample::select(OP_NAMES),
                prop::collection::vec(
                    prop_oneof![
                        prop::sample::select(&[
                            "p0", "p1", "a", "b", "f", "x", "anon", "file:f", "rw", "none", "private",
                            "shared", "at=", "at=262144", "foff=99999999999999999999", "to=7", "rev",
                            "move", "resize", "uring", "register", "wp", "64kB", "global", "never", "ext4",
                            "memfd", "bulk", "fill=3", "cold", "a:0+4/2", "a:262143+1", "1G", "16k", "k", "é",
                            "a:18446744073709551615+18446744073709551615/18446744073709551615", "",
                        ][..]).prop_map(str::to_owned),
                        any::<u64>().prop_map(|n| n.to_string()),
                        (0u64..300).prop_map(|n| n.to_string()),
                        ".{0,6}",
                    ],
                    0..7,
                ),
            ),
            1..12,
        )
    ) {
        let mut text = PRELUDE.to_owned();
        for (op, words) in lines {
            text += &format!("{op} {}\n", words.join(" "));
        }
        match Scenario::parse("t", &text) {
            Ok(scenario) => {
                for (_, region) in scenario.regions() {
                    prop_assert!(region.at < WINDOW_PAGES);
                }
            }
            Err(error) => prop_assert_eq!(error.to_string().lines().count(), 1),
        }
    }

    /// A handed scenario with one character changed never panics.
    #[test]
    fn a_changed_character(pick in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), c: char) {
        let entries = corpus::handed().unwrap();
        let mut text: Vec<char> = pick.get(&entries).text.chars().collect();
        *at.get_mut(&mut text) = c;
        let text: String = text.into_iter().collect();
        if let Err(error) = Scenario::parse("t", &text) {
            prop_assert_eq!(error.to_string().lines().count(), 1);
        }
    }

    /// Any text is an observation or is not.
    #[test]
    fn any_record(text in any::<String>()) {
        let _ = mm_scenario::observe::Record::read_all(&text);
    }
}
