//! The command line from outside: what is printed, and the exit codes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn mmlab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mmlab")).args(args).output().expect("mmlab starts")
}
fn data(name: &str) -> String {
    Path::new(mm_scenario::corpus::handed_dir()).join(name).display().to_string()
}
/// A folder of this test's own.
fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(dir.join("golden")).expect("folder");
    dir
}
fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}
/// Bad input is one line on standard error, and exit code 2.
#[track_caller]
fn assert_bad_input(args: &[&str], says: &[&str]) {
    let out = mmlab(args);
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{args:?}: {err}");
    assert_eq!(err.lines().count(), 1, "{args:?}: {err}");
    assert!(says.iter().all(|s| err.contains(s)), "{args:?}: {err}");
    assert_eq!(text(&out.stdout), "", "{args:?}");
}

#[test]
fn records_are_printed_like_goldens() {
    let out = mmlab(&["run", &data("fault_64kb.scn"), "--policy", "linux-6.18", "--memory", "16M"]);
    assert_eq!(out.status.code(), Some(0));
    let golden = fs::read_to_string(data("golden/fault_64kb.json")).expect("golden");
    // What heuristics set is not in the model.
    let left = |s: &str| s.replace(" act", "").replace(" ref", "");
    assert_eq!(left(text(&out.stdout)), left(&golden));
}

#[test]
fn check_counts_and_says_what_differs_first() {
    let out = mmlab(&["run", &data("fault_64kb.scn"), "--check", "--memory", "16M"]);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(0), "1 passed, 0 failed\n"));

    let dir = folder("differs");
    let scenario = "mmap p0 a 4 anon rw private\nwrite p0 a 1\nfaults p0\n";
    let golden = r#"{"line":3,"op":"faults","p":"p0","min":3,"maj":0,"gup_min":0,"gup_maj":0,"minat":{"a":[[0,4]]}}"#;
    fs::write(dir.join("bad.scn"), scenario).expect("scenario");
    fs::write(dir.join("golden/bad.json"), golden).expect("golden");
    fs::write(dir.join("good.scn"), scenario).expect("scenario");
    fs::write(dir.join("golden/good.json"), golden.replace("\"min\":3", "\"min\":4"))
        .expect("golden");
    let dir = dir.display().to_string();
    let out = mmlab(&["run", &dir, "--check", "--memory", "16M"]);
    assert_eq!(out.status.code(), Some(1));
    assert_eq!(
        text(&out.stdout),
        "bad: line 3: faults min: expected 3, got 4\n1 passed, 1 failed\n"
    );
    // In the same order, however many at a time.
    for jobs in ["1", "3", "1000000"] {
        let formats = "x86_64,x86-pae";
        let args = ["run", &dir, "--check", "--memory", "16M", "--arch", formats, "-j", jobs];
        let out = mmlab(&args);
        let each = |f: &str| format!("{f} bad: line 3: faults min: expected 3, got 4\n");
        let both = each("x86_64") + &each("x86-pae") + "2 passed, 2 failed\n";
        assert_eq!((out.status.code(), text(&out.stdout)), (Some(1), both.as_str()));
    }
    assert_bad_input(&["run", &dir, "--check", "-j", "0"], &["--jobs"]);
    // Not compared: the content is the same.
    let out = mmlab(&["run", &dir, "--check", "--memory", "16M", "--policy", "best"]);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(0), "2 passed, 0 failed\n"));
}

/// Formats are listed after `--arch`, and a path among them is one.
#[test]
fn several_formats() {
    let s = &data("fault_64kb.scn");
    let line = |n: u32| format!("{n} passed, 0 failed\n");
    for args in [
        &["run", s, "--arch", "x86_64", "x86_64-noshstk", "--check"][..],
        &["run", "--check", "--arch", "x86_64,x86_64-noshstk", s],
        &["run", "--check", "--arch", "x86_64", "x86_64-noshstk", "x86_64", s],
    ] {
        let out = mmlab(args);
        assert_eq!((out.status.code(), text(&out.stdout)), (Some(0), line(2).as_str()), "{args:?}");
    }
    let all = mmlab(&["run", "--check", "--memory", "16M", "--arch", "all", s]);
    assert_eq!(all.status.code(), Some(0));
    let out = mmlab(&["run", s, "--arch", "x86_64", "x86_64-noshstk"]);
    let named: Vec<_> = text(&out.stdout).lines().filter(|l| l.contains("arch")).collect();
    assert_eq!(named, [r#"{"arch":"x86_64"}"#, r#"{"arch":"x86_64-noshstk"}"#]);
    assert_bad_input(&["run", "--arch", s], &["fault_64kb.scn", "x86_64", "or all"]);
    assert_bad_input(&["run", s, "--arch", "x86_64", "vax"], &["vax", "x86_64-noshstk", "or all"]);
    assert_bad_input(&["run", s, "--arch", ""], &["x86_64"]);
}

/// As a real kernel on either machine had them.
#[test]
fn tables_are_dumped_as_recorded() {
    let s = &data("reuse_64kb.scn");
    for (arch, machine) in [("x86_64", "amd64"), ("arm64-4k", "arm64")] {
        let args = ["run", s, "--dump-tables", "--policy", "linux-6.18", "--arch", arch];
        let expected = fs::read_to_string(data(&format!("tables/reuse_64kb.{machine}.txt")));
        assert_eq!(text(&mmlab(&args).stdout), expected.expect("recorded"), "{arch}");
    }
    assert_bad_input(&["run", s, "--check", "--dump-tables"], &["--dump-tables"]);
}

/// Rules: PAE-14. What a format lacks is told apart from what fails.
#[test]
fn what_a_format_lacks_is_not_applicable() {
    let (s, t) = (&data("uffdwp_part_64k.scn"), &data("fault_64kb.scn"));
    let out = mmlab(&["run", s, t, "--check", "--memory", "16M", "--arch", "x86_64,x86-pae"]);
    let expected = "n/a: x86-pae has no uffd-wp: uffdwp_part_64k\n3 passed, 0 failed, 1 n/a\n";
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(0), expected));
    let out = mmlab(&["run", s, "--arch", "x86-pae"]);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(1), ""));
    assert!(text(&out.stderr).contains("x86-pae has no uffd-wp"));
}

/// Pages of 16 and 64 KiB are formats of their own; `all` has those that a scenario is for.
///
/// Rules: A64-01.
#[test]
fn page_sizes_are_told_apart() {
    let (small, own) = (&data("fault_64kb.scn"), &data("pages/16k_reuse.scn"));
    let out = mmlab(&["run", own, "--check", "--memory", "16M", "--arch", "all"]);
    let shown = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{shown}");
    assert!(
        shown.starts_with("arm64-16k: ") && shown.ends_with("\n1 passed, 0 failed\n"),
        "{shown}"
    );
    let out =
        mmlab(&["run", small, own, "--check", "--memory", "16M", "--arch", "x86_64,arm64-16k"]);
    let shown = text(&out.stdout);
    assert_eq!(out.status.code(), Some(0), "{shown}");
    for line in [
        "n/a: arm64-16k has no pages of 4 KiB: fault_64kb",
        "n/a: x86_64 has no pages of 16 KiB: 16k_reuse",
        "2 passed, 0 failed, 2 n/a",
    ] {
        assert!(shown.lines().any(|l| l == line), "{shown}");
    }
    let out = mmlab(&["run", small, "--arch", "arm64-64k"]);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(1), ""));
    assert!(text(&out.stderr).contains("arm64-64k has no pages of 4 KiB"));
}

/// Blocks are really folded where the format has them, and GUP really takes them by hint.
///
/// Rules: CONT-02, CONT-16.
#[test]
fn what_blocks_did_is_counted() {
    let s = &data("pin_w_then_fork_64k.scn");
    let policy = ["--policy", "series", "--memory", "16M", "--arch", "x86_64,arm64-4k"];
    let out = mmlab(&[&["run", s, "--check"][..], &policy].concat());
    let shown = text(&out.stdout);
    // Two folios of one block, and one of them in each of two children; 16 pages by one look.
    let expected = "arm64-4k: 4 blocks folded, 15 entries taken by hint\n2 passed, 0 failed\n";
    assert_eq!((out.status.code(), shown), (Some(0), expected));
}

/// Vectors of real kernels and of the manuals, in words.
#[test]
fn entries_are_explained() {
    for (args, says) in [
        (&["x86_64", "8000000000000867"][..], &["maps frame 0x0", "readable, writable"][..]),
        (&["x86_64", "8400000000000825"], &["SAVED_DIRTY  1", "accessed, dirty, soft-dirty"]),
        (&["x86_64", "8000000000000065"], &["shadow stack"]),
        (&["x86_64-noshstk", "8000000000000065"], &["fault", "there is none here"]),
        (&["x86_64", "0"], &["empty"]),
        (&["x86_64", "07fffffffffbfe08"], &["device 0, slot 0x200", "exclusive"]),
        (&["x86_64", "1000067", "--level", "pmd"], &["points to the table in frame 0x1000"]),
        (&["arm64-4k", "00f8000012340f43"], &["frame 0x12340", "CONT      1"]),
    ] {
        let mut all = vec!["pte", "decode", "--arch"];
        all.extend(args);
        let out = mmlab(&all);
        assert_eq!(out.status.code(), Some(0), "{args:?}");
        let shown = text(&out.stdout);
        assert!(says.iter().all(|s| shown.contains(s)), "{args:?}: {shown}");
        // Nobody reads colours in a pipe.
        assert!(!shown.contains('\u{1b}'), "{args:?}");
        all.extend(["--color", "always"]);
        assert!(text(&mmlab(&all).stdout).contains('\u{1b}'), "{args:?}");
        all.extend(["--json"]);
        let out = mmlab(&all);
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
        assert_eq!(json["arch"], args[0]);
    }
}

/// What is encoded decodes to what was asked for, without a fault.
#[test]
fn entries_are_made() {
    let encode = |args: &[&str]| {
        let out = mmlab(&[&["pte", "encode", "--arch"][..], args].concat());
        assert_eq!(out.status.code(), Some(0), "{args:?}: {}", text(&out.stderr));
        text(&out.stdout).trim_end().to_owned()
    };
    let written = ["--writable", "--dirty", "--young"];
    for (args, raw) in [
        (&["x86_64", "--pfn", "0x12345"][..], "0x8000000012345005"),
        (&[&["x86_64", "--pfn", "74565"], &written[..]].concat(), "0x8000000012345867"),
        (&["x86_64", "--swap", "0:0x200", "--exclusive"], "0x07fffffffffbfe08"),
        (&[&["arm64-4k", "--pfn", "0x12340"], &written[..]].concat(), "0x00e8000012340f43"),
    ] {
        assert_eq!(encode(args), raw, "{args:?}");
    }
    let kinds: [&[&str]; 5] = [
        &["--pfn", "0x1000", "--prot", "rwx", "--young"],
        &["--pfn", "0x1000", "--prot", "none"],
        &["--swap", "3:77"],
        &["--migration", "write:0x1234"],
        &["--marker", "guard"],
    ];
    for arch in ["x86_64", "x86_64-la57", "x86-pae", "arm64-4k", "arm64-64k", "riscv-sv39"] {
        for kind in kinds {
            let raw = encode(&[&[arch], kind].concat());
            let out = mmlab(&["pte", "decode", "--json", "--arch", arch, &raw]);
            let json: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
            assert_eq!(json["faults"], serde_json::json!([]), "{arch} {kind:?} {raw}");
        }
    }
}

#[test]
fn bad_entries() {
    let decode = |args: &[&str], says: &[&str]| {
        assert_bad_input(&[&["pte", "decode"][..], args].concat(), says);
    };
    decode(&[], &["--arch", "x86_64", "arm64-4k", "riscv-sv39"]);
    decode(&["1"], &["--arch", "x86_64", "arm64-4k", "riscv-sv39"]);
    decode(&["--arch", "vax", "1"], &["vax", "x86_64", "arm64-4k", "riscv-sv39"]);
    decode(&["--arch", "x86_64"], &["hexadecimal"]);
    decode(&["--arch", "x86_64", "zz"], &["zz", "hexadecimal"]);
    decode(&["--arch", "x86_64", "12345678123456781"], &["12345678123456781", "64 bits"]);
    decode(&["--arch", "x86_64", "1", "--level", "p4d"], &["p4d", "pud, pgd"]);
    decode(&["--arch", "x86_64", "1", "--level", "leaf"], &["leaf", "pmd"]);
    let encode = |args: &[&str], says: &[&str]| {
        assert_bad_input(&[&["pte", "encode", "--arch"][..], args].concat(), says);
    };
    encode(&["x86_64"], &["--pfn", "--swap"]);
    encode(&["x86_64", "--pfn", "0x12345", "--level", "pmd"], &["0x12345", "order 9"]);
    encode(&["x86_64", "--pfn", "0x10000000000000"], &["0x10000000000000", "40"]);
    encode(&["x86_64", "--pfn", "1", "--level", "pgd"], &["Pgd"]);
    encode(&["x86_64", "--pfn", "1", "--table", "2"], &["--pfn", "--table"]);
    encode(&["x86_64", "--pfn", "1", "--exclusive"], &["--exclusive", "leaf"]);
    encode(&["x86_64", "--pfn", "one"], &["one"]);
    encode(&["x86_64", "--swap", "24:1"], &["24"]);
    encode(&["x86_64", "--swap", "0"], &["DEVICE:OFFSET"]);
    encode(&["x86_64", "--swap", "0:1", "--writable"], &["--writable"]);
    encode(&["x86_64", "--marker", "magic"], &["magic", "guard"]);
    encode(&["x86_64", "--table", "1"], &["pte"]);
    encode(&["x86_64", "--marker", "guard", "--prot", "rw"], &["--prot"]);
    encode(&["x86_64", "--table", "1", "--level", "pmd", "--pkey", "0"], &["--pkey", "table"]);
    // What decode would call a fault.
    encode(&["x86_64", "--pfn", "1", "--writable", "--uffd-wp"], &["writable", "userfaultfd"]);
    encode(&["arm64-4k", "--swap", "0:1", "--level", "pmd"], &["PMD", "PTEs"]);
    encode(&["riscv-sv39", "--marker", "guard", "--level", "pgd"], &["this level"]);
    encode(&["x86-pae", "--pfn", "1", "--uffd-wp"], &["x86-pae", "uffd-wp"]);
    encode(&["arm64-4k", "--pfn", "1", "--shadow-stack"], &["arm64-4k", "shadow-stack"]);
    encode(&["arm64-4k", "--pfn", "1", "--pkey", "3"], &["arm64-4k", "protection-key"]);
}

#[test]
fn what_ends_early_is_named_and_counts_as_failed() {
    let dir = folder("early");
    fs::write(dir.join("s.scn"), "note first\n").expect("scenario");
    fs::write(dir.join("golden/s.json"), r#"{"line":1,"op":"note","text":"first"}"#)
        .expect("golden");
    let path = dir.join("s.scn").display().to_string();
    // Room for the machine, and for no process.
    let out = mmlab(&["run", &path, "--check", "--memory", "4096"]);
    assert_eq!(out.status.code(), Some(1));
    let why = format!("{path}:1: no memory");
    assert!(text(&out.stdout).starts_with(&format!("s: {why}")), "{out:?}");
    assert!(text(&out.stdout).ends_with("0 passed, 1 failed\n"), "{out:?}");
    let out = mmlab(&["run", &path, "--memory", "4096"]);
    assert_eq!((out.status.code(), text(&out.stdout)), (Some(1), ""));
    assert!(text(&out.stderr).contains(&why), "{out:?}");
}

#[test]
fn bad_arguments() {
    let s = &data("fault_64kb.scn");
    assert_bad_input(&["run", s, "--arch", "vax"], &["vax", "x86_64"]);
    assert_bad_input(&["run", s, "--policy", "linux"], &["linux", "linux-6.18", "series"]);
    assert_bad_input(&["run", s, "--memory", "lots"], &["lots"]);
    assert_bad_input(&["run", s, "--memory", "0"], &["0 bytes"]);
    assert_bad_input(&["run", s, "--memory", "4097"], &["4097 bytes"]);
    assert_bad_input(&["run", s, "--memory", "65G"], &["bytes"]);
    assert_bad_input(&["run"], &["FILE|DIR"]);
    assert_bad_input(&["gup-test", "-H", "-m", "3"], &["2m-pmd"]);
    assert_bad_input(&["gup-test", "-H", "-S"], &["-H", "-S"]);
    assert_bad_input(&["gup-test", "-f", "no/such/file"], &["no/such/file"]);
    assert_bad_input(&["gup-test", "-m", "3", "--folio", "2m-pmd"], &["2m-pmd"]);
    assert_bad_input(&["gup-test", "7"], &["-c"]);
    assert_bad_input(&["gup-test", "-c", "1", "2", "3", "4", "5", "6", "7", "8", "9"], &["9"]);
    assert_bad_input(&["gup-test", "-c", "1x"], &["1x"]);
    assert_bad_input(&["gup-test", "-u", "-L"], &["-u", "-L"]);
    assert_bad_input(&["gup-test", "--compat", "--json"], &["--compat", "--json"]);
    assert_bad_input(&["gup-test", "-z", "-m", "1", "-F", "0x20"], &["not mapped"]);
    assert_bad_input(&["gup-test", "-F", "2"], &["-F 0x2"]);
    for option in ["-m", "-n", "-r", "-j"] {
        assert_bad_input(&["gup-test", option, "0"], &["0"]);
        assert_bad_input(&["gup-test", option, "-1"], &["-1"]);
        assert_bad_input(&["gup-test", option, "many"], &["many"]);
    }
    assert_bad_input(&["gup-test", "-m", "32769"], &["32769"]);
    assert_bad_input(&["gup-test", "-j", "65"], &["65"]);
    assert_bad_input(
        &["repro", "gup"],
        &["gup-fast", "gup-slow", "reuse", "dio", "register-buffers"],
    );
    assert_bad_input(&["repro", "--rounds", "2"], &["2", "3..=1000"]);
    assert_bad_input(&["walk"], &["walk"]);
    assert_bad_input(&["run", "no-such.scn"], &["no-such.scn"]);
}

/// Help, and not a sentence that says what mmlab is.
#[test]
fn what_is_missing_is_shown() {
    for (args, names) in [(&[][..], "gup-test"), (&["pte"], "decode")] {
        let out = mmlab(args);
        assert_eq!((out.status.code(), text(&out.stdout)), (Some(2), ""), "{args:?}");
        let said = text(&out.stderr);
        assert!(said.contains("Usage: mmlab") && said.contains(names), "{said}");
    }
}

/// As in `mmlab … | head -1`: no panic, nothing said.
#[test]
fn nobody_reads_the_output() {
    let dir = folder("not-read");
    fs::write(dir.join("s.scn"), "note x\n").expect("scenario");
    fs::write(dir.join("golden/s.json"), "").expect("golden");
    let s = dir.join("s.scn").display().to_string();
    for args in [
        &["run", &s, "--memory", "1M"][..],
        &["run", &s, "--memory", "1M", "--check"],
        &["gup-test", "-m", "1"],
        &["pte", "decode", "--arch", "x86_64", "1", "2"],
        &["pte", "encode", "--arch", "x86_64", "--pfn", "1"],
        &["gup-test", "-m", "1", "--json"],
    ] {
        let (reader, writer) = std::io::pipe().expect("pipe");
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_mmlab"));
        let out = command.args(args).stdout(writer).output().expect("mmlab starts");
        assert_eq!((out.status.code(), text(&out.stderr)), (Some(1), ""), "{args:?}");
    }
}

#[test]
fn bad_scenarios() {
    let dir = folder("bad");
    let run = |name: &str, scenario: &str, says: &[&str], more: &[&str]| {
        let path = dir.join(name).display().to_string();
        fs::write(&path, scenario).expect("scenario");
        let mut args = vec!["run", path.as_str()];
        args.extend(more);
        assert_bad_input(&args, says);
    };
    run("op.scn", "# first\nfly p0\n", &["op.scn:2:", "fly"], &[]);
    run("word.scn", "mmap p0 a 4 anon rw sideways\n", &["word.scn:1:", "sideways"], &[]);
    run("count.scn", "mmap p0 a 0 anon rw private\n", &["count.scn:1:"], &[]);
    run("range.scn", "mmap p0 a 4 anon rw private\nread p0 a:3+9999999\n", &["range.scn:2:"], &[]);
    let path = dir.join("text.scn").display().to_string();
    fs::write(&path, b"note x\nnote \xff\n").expect("scenario");
    assert_bad_input(&["run", &path], &["text.scn:2:", "UTF-8"]);
    fs::write(dir.join("golden/big.json"), "").expect("golden");
    run(
        "big.scn",
        "note first\nmmap p0 a 4097 anon rw private\n",
        &["big.scn:2:", "4097 pages", "4096"],
        &["--check", "--memory", "16M"],
    );
    let path = dir.join("golden/none.json").display().to_string();
    run("none.scn", "note x\n", &[&path, "no such golden file"], &["--check", "--memory", "16M"]);
    fs::write(dir.join("golden/json.json"), "{\"line\":1}\n").expect("golden");
    run("json.scn", "note x\n", &["json.json", "line 1"], &["--check", "--memory", "16M"]);
}
