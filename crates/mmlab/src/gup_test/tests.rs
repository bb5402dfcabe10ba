use super::args::GupTestArgs;
use super::pass::Mode;
use super::{Session, run};
use crate::bed::Bed;
use crate::cli::{Cli, Command};
use clap::Parser;
use mm_arch::VirtRange;
use mm_gup::GupFlags;
use mm_sim::{EventCounts, Preset};
use mm_vma::{Platform, VmaFlags};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn parse(options: &str) -> GupTestArgs {
    let words = ["mmlab", "gup-test"].into_iter().chain(options.split_whitespace());
    match Cli::try_parse_from(words).map(|cli| cli.command) {
        Ok(Command::GupTest(args)) => args,
        other => panic!("{options}: {other:?}"),
    }
}

/// What is printed, on a clock that stands at 0, 412, 1000, 1033 µs in each pass.
fn output(options: &str) -> Result<Vec<String>, String> {
    let args = parse(options);
    let (ticks, lines) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let clock = || {
        let tick = ticks.fetch_add(1, Relaxed);
        (tick / 4 * 2000) as f64 + [0.0, 412.0, 1000.0, 1033.0][(tick % 4) as usize]
    };
    run(&args, &clock, &|line| lines.lock().expect("no panic").push(line.to_owned()))?;
    Ok(lines.into_inner().expect("no panic"))
}
#[track_caller]
fn assert_output(options: &str, expected: &[&str]) {
    assert_eq!(output(options).expect(options), expected, "{options}");
}
fn json(options: &str) -> Vec<serde_json::Value> {
    let lines = output(&format!("--json {options}")).expect(options);
    lines.iter().map(|l| serde_json::from_str(l).expect("JSON")).collect()
}

mod arguments {
    use super::*;

    /// Rules: BENCH-01.
    #[test]
    fn modes_by_option() {
        for (option, mode, name, benchmark) in [
            ("", Mode::GetFast, "GUP_FAST_BENCHMARK", true),
            ("-u", Mode::GetFast, "GUP_FAST_BENCHMARK", true),
            ("-U", Mode::Get, "GUP_BASIC_TEST", false),
            ("-a", Mode::PinFast, "PIN_FAST_BENCHMARK", true),
            ("-b", Mode::Pin, "PIN_BASIC_TEST", false),
            ("-L", Mode::Longterm, "PIN_LONGTERM_BENCHMARK", true),
            ("-c", Mode::Dump { pinned: false }, "DUMP_USER_PAGES_TEST", false),
            ("-cp", Mode::Dump { pinned: true }, "DUMP_USER_PAGES_TEST", false),
        ] {
            let plan = parse(option).plan().expect(option);
            assert_eq!((plan.mode, plan.mode.name()), (mode, name), "{option}");
            assert_eq!(plan.mode.is_benchmark(), benchmark, "{option}");
            let flags = plan.flags.expect("legal");
            assert_eq!(flags.contains(GupFlags::LONGTERM), option == "-L", "{option}");
        }
    }

    /// Rules: BENCH-02.
    #[test]
    fn options_and_their_defaults() {
        let a = parse("");
        assert_eq!((a.mib, a.pages_per_call, a.repeats, a.threads), (128, 1, 1, 1));
        assert!(!a.thp && !a.no_thp && !a.shared && !a.hugetlb && !a.untouched);
        assert_eq!((a.file, a.flags, a.indexes), (None, None, vec![]));
        let a = parse("-ct -m 7 -n 512 -j 3 -F 0x1 0 19 0x1000 010");
        assert_eq!((a.mib, a.pages_per_call, a.threads, a.thp), (7, 512, 3, true));
        assert_eq!((a.flags, a.indexes), (Some(1), vec![0, 19, 4096, 8]));
        let flags = |options| parse(options).plan().map(|p| p.flags.expect("legal").bits());
        // Write is added to what -F has; -W only leaves it out.
        assert_eq!(flags(""), Ok(1));
        assert_eq!(flags("-W"), Ok(0));
        assert_eq!(flags("-W -F 1"), Ok(1));
        assert_eq!(flags("-F 040"), Ok(0x21));
        for bad in ["-F 2", "-F 0x10000", "-F 0x80000000"] {
            assert!(flags(bad).is_err_and(|e| e.contains("FOLL")), "{bad}");
        }
    }

    /// Rules: BENCH-02, BENCH-12, BENCH-14. One leaf is one step, from the first pass on.
    #[test]
    fn huge_pages_are_there_before_anything_is_measured() {
        for option in ["-a", "-u", "-L"] {
            let lines = json(&format!("-H -m 4 -n 1024 -r 2 {option}"));
            assert_eq!(lines.len(), 2);
            for line in lines {
                assert_eq!((&line["folio"], &line["bytes"]), (&"2m-pmd".into(), &(4 << 20).into()));
                let counts = (&line["counts"]["grabs"], &line["counts"]["faults"]);
                assert_eq!(counts, (&2.into(), &0.into()), "{option}");
            }
        }
        let line = "# PIN_FAST_BENCHMARK: Time: get:412 put:33 us# ";
        assert!(output("-H -m 2 -n 512 -a --compat").is_ok_and(|l| l.iter().any(|l| l == line)));
        let odd = output("-H -m 3");
        assert!(odd.as_ref().is_err_and(|e| e.contains("2m-pmd folios")), "{odd:?}");
        for other in ["-S", "-t", "-z", "-f x", "--folio 64k"] {
            let words = format!("mmlab gup-test -H {other}");
            let refused = Cli::try_parse_from(words.split_whitespace()).expect_err(other);
            assert!(refused.to_string().contains("cannot be used with"), "{refused}");
        }
    }
}

mod files {
    use super::*;

    fn host_file(name: &str, bytes: u64) -> String {
        let path = std::env::temp_dir().join(format!("mmlab-{name}-{}", std::process::id()));
        let file = std::fs::File::create(&path).expect("host file");
        file.set_len(bytes).expect("host file");
        path.to_string_lossy().into_owned()
    }

    /// Rules: BENCH-02, LT-05.
    #[test]
    fn shared_memory_and_files_are_taken() {
        let path = host_file("taken", 1 << 20);
        for options in [
            "-S -u".to_owned(),
            "-S -a".to_owned(),
            "-S -L".to_owned(),
            format!("-f {path} -a"),
            format!("-f {path} -L"),
            format!("-f {path} -S -a"),
            format!("-f {path} -S -L -W"),
        ] {
            let out = output(&format!("-m 1 -n 64 {options}"));
            assert!(out.is_ok(), "{options}: {out:?}");
        }
        // The file would not hear of what the device writes.
        let refused = output(&format!("-m 1 -n 64 -f {path} -S -L"));
        std::fs::remove_file(&path).expect("there");
        assert!(refused.is_err(), "{refused:?}");
    }

    #[test]
    fn a_file_that_is_not_there_or_too_small_says_so() {
        let missing = output("-m 1 -f /nonexistent/file");
        assert!(missing.as_ref().is_err_and(|e| e.contains("/nonexistent/file")), "{missing:?}");
        let path = host_file("small", 4096);
        let small = output(&format!("-m 1 -f {path}"));
        std::fs::remove_file(&path).expect("there");
        assert!(small.as_ref().is_err_and(|e| e.contains("page 1")), "{small:?}");
    }
}

mod passes {
    use super::*;

    fn plan(options: &str) -> super::super::Plan {
        parse(options).plan().expect(options)
    }
    /// 1024 pages, of which only the first 600 are mapped.
    fn holed() -> Bed<()> {
        let rights = VmaFlags::READ | VmaFlags::WRITE;
        let bed = Bed::<()>::new(4 << 20, None, None, rights, Preset::Best.policy()).expect("bed");
        bed.touch().expect("memory");
        let rest = VirtRange::new(bed.page_va(600), 424 * 4096).expect("range");
        bed.process.munmap(rest).expect("mapped");
        bed
    }

    /// Rules: BENCH-05, BENCH-06.
    #[test]
    fn a_call_that_falls_short_ends_the_pass() {
        let bed = holed();
        let handler = bed.process.gup_handler();
        for (options, pages, asked) in [
            // Served in part: the kernel's old tool counts it as whole.
            ("-a -n 512", 600, 1024),
            ("-U -n 7000", 600, 1024),
            // Not served: it does not count.
            ("-L -n 100", 600, 600),
            ("-u -n 1", 600, 600),
        ] {
            let pass = plan(options).pass(&bed, &handler, &(), &|| 0.0).expect("memory");
            assert_eq!((pass.pages.len(), pass.asked), (pages, asked), "{options}");
            assert_eq!(pass.error, None, "{options}");
        }
        bed.process.munmap(bed.range).expect("mapped");
        let pass = plan("-u").pass(&bed, &handler, &(), &|| 0.0).expect("memory");
        assert_eq!((pass.pages.len(), pass.asked), (0, 0));
        assert_eq!(pass.error.map(|e| e.errno()), Some("EFAULT"));
    }

    /// Rules: BENCH-05, BENCH-07, BENCH-08. Pins so far and back so far, whenever the clock is read.
    #[test]
    fn the_clock_runs_while_pages_are_taken_and_given_back() {
        let bed = holed();
        let stats = bed.machine.host().memmap().stats();
        let seen = Mutex::new(Vec::new());
        let clock = || {
            let now = (stats.foll_pin_acquired.get(), stats.foll_pin_released.get());
            seen.lock().expect("no panic").push(now);
            0.0
        };
        let handler = bed.process.gup_handler();
        let pass = plan("-a -n 64").pass(&bed, &handler, &(), &clock).expect("memory");
        assert_eq!(pass.looks_wrong, None);
        let seen = seen.into_inner().expect("no panic");
        assert_eq!(seen, [(0, 0), (600, 0), (600, 0), (600, 600)]);
    }

    /// Rules: BENCH-07.
    #[test]
    fn what_a_mode_complains_about() {
        for (mode, pinned, for_long, wrong) in [
            (Mode::PinFast, false, true, true),
            (Mode::Dump { pinned: true }, false, true, true),
            (Mode::Get, false, true, false),
            (Mode::Pin, true, false, false),
            (Mode::Longterm, true, false, true),
            (Mode::Longterm, true, true, false),
        ] {
            assert_eq!(mode.complaint(pinned, for_long).is_some(), wrong, "{mode:?}");
        }
    }

    /// Rules: BENCH-03. Faulted by GUP when it is timed, though it was counted before.
    #[test]
    fn untouched_regions_are_untouched_when_it_counts() {
        let args = parse("-L -T -z -m 2 -n 100");
        let session = Session::new(&args, &|| 0.0, &|_| ()).expect("session");
        let faults = session.counts.each_ref().map(|c| c.gup_faults.get());
        assert_eq!(faults, [512, 0]);
        let counts = EventCounts::default();
        let handler = session.bed.process.gup_handler();
        session.plan.pass(&session.bed, &handler, &counts, &|| 0.0).expect("memory");
        assert_eq!(counts.gup_faults.get(), 512);
        let args = parse("-L -T -m 2");
        let session = Session::new(&args, &|| 0.0, &|_| ()).expect("session");
        assert_eq!(session.counts[0].gup_faults.get(), 0);
    }

    /// Rules: BENCH-03, BENCH-04. Every thread takes the whole region, `-r` times if its times
    /// are printed.
    #[test]
    fn threads_and_repeats() {
        for (options, lines) in
            [("-u -r 3", 3), ("-b -r 3", 1), ("-a -j 4 -r 2", 8), ("-U -j 3", 3)]
        {
            let printed = json(&format!("-m 1 -n 512 {options}"));
            assert_eq!(printed.len(), lines, "{options}");
            assert!(printed.iter().all(|l| l["bytes"] == 1 << 20), "{printed:?}");
        }
        let threads = json("-m 1 -j 4").iter().map(|l| l["thread"].as_u64()).collect::<Vec<_>>();
        assert!((0..4).all(|i| threads.contains(&Some(i))), "{threads:?}");
    }

    /// Rules: BENCH-12, BENCH-14. All variants of anonymous memory, with exact counts.
    #[test]
    fn the_matrix() {
        const PAGES: u64 = 1024;
        for thp in ["-t", "-T"] {
            for mode in ["-u", "-U", "-a", "-b", "-L", "-c", "-cp"] {
                for access in ["-w", "-W"] {
                    for n in [1, 123, 512, PAGES] {
                        let options = format!("-m 4 {thp} {mode} {access} -n {n}");
                        let [line] = &json(&options)[..] else { panic!("{options}") };
                        assert_eq!(
                            (&line["bytes"], &line["truncated"]),
                            (&(PAGES * 4096).into(), &false.into()),
                            "{options}"
                        );
                        // Calls, cut where a leaf ends.
                        let steps = (0..PAGES).filter(|p| p % n == 0 || p % 512 == 0).count();
                        let grabs = if thp == "-t" { steps } else { PAGES as usize };
                        assert_eq!(line["counts"]["grabs"], grabs, "{options}");
                        let fast = matches!(mode, "-u" | "-a");
                        assert_eq!(line["counts"]["locks"] == 0, fast, "{options}");
                        assert_eq!(line["counts"]["faults"], 0, "{options}");
                    }
                }
            }
        }
    }

    /// Rules: BENCH-13. Long-term pins in one call, 16 times, as patch series 000 and 001 measure
    /// them: folios of 64 KiB, counted.
    #[test]
    fn the_protocol_of_the_series() {
        let lines = json("-L -m 64 -n 65536 -r 16 --folio 64k --policy series");
        assert_eq!(lines.len(), 16);
        assert!(lines.iter().all(|l| l["bytes"] == 64 << 20 && l["counts"]["grabs"] == 1024));
    }

    /// Rules: BENCH-11. What is pinned keeps its bytes, whatever a child writes.
    #[test]
    fn pinned_bytes_stay() {
        let rights = VmaFlags::READ | VmaFlags::WRITE;
        for size in crate::bed::FolioSize::ALL {
            let bed = Bed::<()>::new(2 << 20, Some(size), None, rights, Preset::Best.policy())
                .expect("bed");
            let nr = bed.nr_pages();
            let of = |page: usize| 0x1000 + page as u64;
            for page in 0..nr {
                bed.process.store(bed.page_va(page), of(page)).expect("mapped");
            }
            let flags = GupFlags::WRITE | GupFlags::LONGTERM;
            let pinned = bed.process.pin(bed.range.start(), nr, flags).expect("pages");
            let child = bed.process.fork().expect("memory");
            for page in 0..nr {
                child.store(bed.page_va(page), 7).expect("mapped");
            }
            for page in 0..nr {
                assert_eq!(pinned.load(page, 0), Some(of(page)), "{size:?} {page}");
                assert_eq!(bed.process.load(bed.page_va(page)), Ok(of(page)), "{size:?} {page}");
            }
        }
    }
}

mod printed {
    use super::*;

    /// Rules: BENCH-09.
    #[test]
    fn benchmarks_of_the_kernels_tool() {
        for (mode, name) in [("-u", "GUP_FAST"), ("-a", "PIN_FAST"), ("-L", "PIN_LONGTERM")] {
            let line = format!("# {name}_BENCHMARK: Time: get:412 put:33 us# ");
            assert_output(
                &format!("--compat -m 1 -r 2 {mode}"),
                &[
                    "TAP version 13",
                    "1..1",
                    &line,
                    &line,
                    "ok 1 ioctl status 0",
                    "# Totals: pass:1 fail:0 xfail:0 xpass:0 skip:0 error:0",
                ],
            );
        }
    }

    /// Rules: BENCH-09. The pages that are dumped go to the log, not here.
    #[test]
    fn basic_tests_of_the_kernels_tool() {
        for (mode, name) in
            [("-U", "GUP_BASIC"), ("-b", "PIN_BASIC"), ("-c 0 19", "DUMP_USER_PAGES")]
        {
            assert_output(
                &format!("--compat -m 1 -r 2 {mode}"),
                &[
                    "TAP version 13",
                    "1..1",
                    &format!("# {name}_TEST: done"),
                    "ok 1 ioctl status 0",
                    "# Totals: pass:1 fail:0 xfail:0 xpass:0 skip:0 error:0",
                ],
            );
        }
    }

    /// Rules: BENCH-09. One result per thread, numbered as they end.
    #[test]
    fn threads_of_the_kernels_tool() {
        let lines = output("--compat -m 1 -j 3 -b").expect("lines");
        assert_eq!(lines[..2], ["TAP version 13", "1..3"]);
        let results: Vec<_> = lines.iter().filter(|l| l.starts_with("ok ")).collect();
        assert_eq!(results, ["ok 1 ioctl status 0", "ok 2 ioctl status 0", "ok 3 ioctl status 0"]);
        assert_eq!(lines.iter().filter(|l| *l == "# PIN_BASIC_TEST: done").count(), 3);
        let totals = "# Totals: pass:3 fail:0 xfail:0 xpass:0 skip:0 error:0";
        assert_eq!((lines.len(), lines[8].as_str()), (9, totals));
        assert_eq!(super::super::compat::result(2, false), "not ok 2 ioctl status -1");
    }

    /// Rules: BENCH-09, BENCH-10. `-z` adds FOLL_GET: harmless for references, refused
    /// with pins; a refusal is a region of no pages.
    #[test]
    fn truncated_regions_of_the_kernels_tool() {
        let third = |options: &str| {
            output(&format!("--compat -m 1 {options}")).expect("lines")[2..4].join("\n")
        };
        let zero = "Time: get:412 put:33 us# , truncated (size: 0)# \nok 1 ioctl status 0";
        assert_eq!(
            third("-z -u"),
            "# GUP_FAST_BENCHMARK: Time: get:412 put:33 us# \nok 1 ioctl status 0"
        );
        assert_eq!(third("-z -U"), "# GUP_BASIC_TEST: done\nok 1 ioctl status 0");
        assert_eq!(third("-z -a"), format!("# PIN_FAST_BENCHMARK: {zero}"));
        assert_eq!(third("-z -L"), format!("# PIN_LONGTERM_BENCHMARK: {zero}"));
        assert_eq!(third("-z -b"), "# PIN_BASIC_TEST: done\n# Truncated (size: 0)");
        // FOLL_NOFAULT on a region that nobody touched; FOLL_PIN, which no caller may pass.
        assert_eq!(third("-z -u -F 0x20"), format!("# GUP_FAST_BENCHMARK: {zero}"));
        assert_eq!(third("-U -F 0x80000"), "# GUP_BASIC_TEST: done\n# Truncated (size: 0)");
        // Without --compat nothing is added, and an error is an error.
        assert!(output("-m 1 -z -a").is_ok_and(|l| l.len() == 1));
        assert!(output("-m 1 -z -u -F 0x20").is_err_and(|e| e.contains("EFAULT")));
    }

    /// Rules: BENCH-07. As they are while they are held.
    #[test]
    fn dumped_pages() {
        let lines = output("-m 1 -c -p 0 255 256").expect("lines");
        assert_eq!(lines.len(), 4);
        assert_eq!(lines[0], "DUMP_USER_PAGES_TEST: done");
        assert!(lines[1].starts_with("page 0 at ") && lines[2].starts_with("page 255 at "));
        assert_eq!(lines[3], "page 256: beyond the 256 pages that were taken");
        let lines = |options| output(options).expect("lines").remove(1);
        let pinned = lines("-m 1 -c -p --folio 4k 7");
        assert!(pinned.contains("refs: 1025") && pinned.ends_with(", pinned"), "{pinned}");
        let large = lines("-m 1 -c -p --folio 64k 7");
        assert!(large.contains("refs: 32") && large.ends_with(", pinned"), "{large}");
        let got = lines("-m 1 -c --folio 4k 7");
        assert!(got.contains("refs: 2") && !got.ends_with("pinned"), "{got}");
    }
}
