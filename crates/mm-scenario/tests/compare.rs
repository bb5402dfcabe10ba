//! Planted differences: each key of the output is compared when it binds the model, and is not
//! when it does not.

use mm_scenario::corpus;
use mm_scenario::observe::{Record, StatKey};
use mm_scenario::{Capabilities, Difference, Keeps, Mode, first_difference};

fn compare(golden: &str, got: &str, mode: Mode, capabilities: &Capabilities) -> Option<Difference> {
    let read = |text| Record::read_all(text).unwrap();
    first_difference(&read(golden), &read(got), mode, capabilities)
}

fn full(golden: &str, got: &str) -> Option<Difference> {
    compare(golden, got, Mode::Full, &Capabilities::all())
}

/// Plants `new` for `old` and expects the difference at `key`, in both directions.
#[track_caller]
fn planted(record: &str, old: &str, new: &str, key: &str) -> Difference {
    assert!(record.contains(old), "{old} is not in {record}");
    let changed = record.replacen(old, new, 1);
    assert_eq!(full(record, record), None);
    let back = full(&changed, record).expect("the planted difference, from the other side");
    assert_eq!(back.key, key);
    let difference = full(record, &changed).expect("the planted difference");
    assert_eq!(difference.key, key);
    difference
}

const OBSERVE: &str = r#"{"line":7,"op":"observe","t":[{"p":"p0","r":"a","at":0,"n":32,"runs":[{"at":0,"n":16,"s":"present","pmd":1,"wp":1,"k":"anon","o":4,"f":0,"i":0,"mc":2,"x":0,"eq":1},{"at":16,"n":8,"s":"present","k":"anon","o":4,"f":1,"i":8,"mc":1,"x":1,"eq":1},{"at":24,"n":8,"s":"swap"}]}],"folios":[{"f":0,"n":1,"o":4,"fl":"anon lru act ref dirty upd swb swc wb unev mlk hx"},{"f":1,"n":1,"o":4,"fl":"anon lru upd swb hx"}]}"#;

#[test]
fn keys_of_runs() {
    for (old, new, key) in [
        (r#""p":"p0""#, r#""p":"p1""#, "t[0].p"),
        (r#""r":"a""#, r#""r":"b""#, "t[0].r"),
        (r#""n":32"#, r#""n":31"#, "t[0].n"),
        (r#""at":16"#, r#""at":15"#, "t[0].runs[1].at"),
        (r#""n":16"#, r#""n":15"#, "t[0].runs[0].n"),
        (r#""s":"swap""#, r#""s":"marker""#, "t[0].runs[2].s"),
        (r#""pmd":1,"#, "", "t[0].runs[0].pmd"),
        (r#""wp":1,"#, "", "t[0].runs[0].wp"),
        (r#""k":"anon""#, r#""k":"ksm""#, "t[0].runs[0].k"),
        (r#""o":4,"f":1,"i""#, r#""o":5,"f":1,"i""#, "t[0].runs[1].o"),
        (r#""f":1,"i""#, r#""f":0,"i""#, "t[0].runs[1].f"),
        (r#""i":8"#, r#""i":9"#, "t[0].runs[1].i"),
        (r#""mc":2"#, r#""mc":1"#, "t[0].runs[0].mc"),
        (r#""x":0"#, r#""x":1"#, "t[0].runs[0].x"),
        (r#","eq":1"#, r#","eq":0"#, "t[0].runs[0].eq"),
        (r#","eq":1"#, "", "t[0].runs[0].eq"),
        (r#",{"at":24,"n":8,"s":"swap"}"#, "", "t[0].runs[2]"),
    ] {
        planted(OBSERVE, old, new, key);
    }
}

#[test]
fn a_difference_prints_as_one_line() {
    let difference = planted(OBSERVE, r#""mc":2"#, r#""mc":1"#, "t[0].runs[0].mc");
    assert_eq!(difference.to_string(), "line 7: observe t[0].runs[0].mc: expected 2, got 1");
    let difference = full(OBSERVE, "").unwrap();
    assert!(difference.to_string().ends_with("..., got nothing"), "{difference}");
    assert!(difference.to_string().len() < 300);
    assert_eq!((full("", OBSERVE).unwrap().expected.as_str(), difference.line), ("nothing", 7));
}

#[test]
fn keys_of_folios() {
    for flag in ["anon ", "lru ", "dirty ", "upd ", "swb ", "swc ", " wb", "unev ", "mlk ", " hx"] {
        planted(OBSERVE, flag, "", "folios[0].fl");
    }
    for (old, new, key) in [
        (r#"{"f":1,"n":1,"o":4"#, r#"{"f":1,"n":1,"o":3"#, "folios[1].o"),
        (r#"{"f":1,"n":1,"o":4"#, r#"{"f":1,"n":2,"o":4"#, "folios[2]"),
        (r#"{"f":1,"n":1,"o":4"#, r#"{"f":2,"n":1,"o":4"#, "folios[1].f"),
    ] {
        planted(OBSERVE, old, new, key);
    }
    let derived = OBSERVE.replace(r#""folios""#, r#""hx":{},"folios""#);
    assert!(full(&derived, OBSERVE).is_none(), "hx binds what it lists");
}

/// `act` and `ref` bind no model; the head page's exclusiveness only where the head is mapped.
#[test]
fn folio_flags_that_do_not_bind() {
    for (old, new) in [("act ", ""), ("ref ", ""), (r#"swb hx"}"#, r#"swb"}"#)] {
        assert!(OBSERVE.contains(old));
        assert_eq!(full(OBSERVE, &OBSERVE.replacen(old, new, 1)), None, "{old}");
    }
}

#[test]
fn flags_that_a_model_may_leave_out() {
    for (flag, keeps) in [
        ("lru ", Keeps::LRU),
        ("upd ", Keeps::UPTODATE),
        (" wb", Keeps::WRITEBACK),
        ("dirty ", Keeps::DIRTY),
    ] {
        let got = OBSERVE.replacen(flag, "", 1);
        let without = Capabilities { keeps: !keeps, ..Capabilities::all() };
        assert_eq!(compare(OBSERVE, &got, Mode::Full, &without), None, "{flag}");
        let only = Capabilities { keeps, ..Capabilities::least() };
        assert!(compare(OBSERVE, &got, Mode::Full, &only).is_some(), "{flag}");
    }
}

/// How folios are joined to runs does not matter: flags that bind no model can keep them apart.
#[test]
fn folio_runs_are_compared_folio_by_folio() {
    let t = r#""t":[{"p":"p0","r":"a","at":0,"n":2,"runs":[{"at":0,"n":2,"s":"present","k":"anon","o":0,"f":0,"i":0,"mc":1,"x":1}]}]"#;
    let joined = format!(
        r#"{{"line":1,"op":"observe",{t},"folios":[{{"f":0,"n":2,"o":0,"fl":"anon hx"}}]}}"#
    );
    let apart = format!(
        r#"{{"line":1,"op":"observe",{t},"folios":[{{"f":0,"n":1,"o":0,"fl":"anon ref hx"}},{{"f":1,"n":1,"o":0,"fl":"anon hx"}}]}}"#
    );
    assert_eq!(full(&joined, &apart), None);
    assert_eq!(full(&apart, &joined), None);
    // Both pages are heads.
    let second = apart.replace(r#""fl":"anon hx"}]"#, r#""fl":"anon"}]"#);
    assert_eq!(full(&joined, &second).unwrap().key, "folios[1].fl");
}

#[test]
fn derived_goldens() {
    // The `t` of a derived observation has no `eq` and is joined over it.
    let got = r#"{"line":1,"op":"observe","t":[{"p":"p0","r":"a","at":0,"n":4,"runs":[{"at":0,"n":2,"s":"present","k":"anon","o":2,"f":0,"i":0,"mc":1,"x":1,"eq":1},{"at":2,"n":2,"s":"present","k":"anon","o":2,"f":0,"i":2,"mc":1,"x":1}]}],"folios":[{"f":0,"n":1,"o":2,"fl":"anon upd hx"}]}"#;
    let derived = r#"{"line":1,"op":"observe","t":[{"p":"p0","r":"a","at":0,"n":4,"runs":[{"at":0,"n":4,"s":"present","k":"anon","o":2,"f":0,"i":0,"mc":1,"x":1}]}],"hx":{"0":1},"differs-by-design":"seed003"}"#;
    assert_eq!(full(derived, got), None);
    let other = got.replace(r#""mc":1"#, r#""mc":2"#);
    assert_eq!(full(derived, &other).unwrap().key, "t[0].runs[0].mc");
    assert_eq!(full(derived, &got.replace(" hx", "")).unwrap().key, "hx.0");
    assert_eq!(full(&derived.replace(r#"{"0":1}"#, r#"{"0":1,"1":0}"#), got).unwrap().key, "hx.1");
    // Without the mark, an absent `eq` is a difference.
    let not_marked = derived.replace(r#","differs-by-design":"seed003""#, "");
    assert_eq!(full(&not_marked, got).unwrap().key, "t[0].runs[0].n");
    // The mark itself is no key of a runner.
    let faults = r#"{"line":1,"op":"faults","p":"p0","min":1,"maj":0,"gup_min":0,"gup_maj":0,"minat":{"a":[[0,1]]}}"#;
    let marked = faults.replace("]]}}", r#"]]},"differs-by-design":"seed003"}"#);
    assert_eq!(full(&marked, faults), None);
}

const FAULTS: &str = r#"{"line":3,"op":"faults","p":"p0","min":3,"maj":1,"gup_min":0,"gup_maj":2,"minat":{"a":[[0,1],[16,1]],"b":[[4,1]]},"majat":{"a":[[3,1]]}}"#;

#[test]
fn keys_of_faults() {
    for (old, new, key) in [
        (r#""p":"p0""#, r#""p":"p1""#, "p"),
        (r#""min":3"#, r#""min":4"#, "min"),
        (r#""maj":1"#, r#""maj":2"#, "maj"),
        (r#""gup_min":0"#, r#""gup_min":1"#, "gup_min"),
        (r#""gup_maj":2"#, r#""gup_maj":1"#, "gup_maj"),
        ("[16,1]", "[15,1]", "minat.a[1][0]"),
        (",[16,1]", "", "minat.a[1]"),
        (r#","b":[[4,1]]"#, "", "minat.b"),
        (r#","majat":{"a":[[3,1]]}"#, "", "majat"),
    ] {
        planted(FAULTS, old, new, key);
    }
    let other_order = FAULTS
        .replace(r#"{"a":[[0,1],[16,1]],"b":[[4,1]]}"#, r#"{"b":[[4,1]],"a":[[0,1],[16,1]]}"#);
    assert_eq!(full(FAULTS, &other_order), None, "the order of regions says nothing");
}

#[test]
fn keys_of_contents_and_answers() {
    for (record, old, new, key) in [
        (
            r#"{"line":1,"op":"content","p":"p0","r":"a","c":[[0,4,"1"]]}"#,
            r#""1""#,
            r#""2""#,
            "c[0][2]",
        ),
        (r#"{"line":1,"op":"peek","p":"p0","r":"a","c":[[0,4,"1@3"]]}"#, "1@3", "1@*", "c[0][2]"),
        (r#"{"line":1,"op":"pvread","p":"p0","r":"a","c":[[0,4,"0"]]}"#, "[0,4", "[0,3", "c[0][1]"),
        (
            r#"{"line":1,"op":"pinread","p":"p0","pin":"x","c":[[0,4,"1"]]}"#,
            "[0,4",
            "[1,4",
            "c[0][0]",
        ),
        (r#"{"line":1,"op":"pinread","p":"p0","pin":"x","c":[]}"#, r#""x""#, r#""y""#, "pin"),
        (r#"{"line":1,"op":"fcontent","file":"f","c":[[0,4,"1"]]}"#, r#""f""#, r#""g""#, "file"),
        (r#"{"line":1,"op":"expect","p":"p0","ok":true,"bad":0}"#, "true", "false", "ok"),
        (r#"{"line":1,"op":"expect","p":"p0","ok":false,"bad":1}"#, ":1}", ":2}", "bad"),
        (r#"{"line":1,"op":"events","p":"p0","e":[["a",4,"wp"]]}"#, "wp", "missing-w", "e[0][2]"),
        (r#"{"line":1,"op":"events","p":"p0","e":[["a",4,"wp"]]}"#, r#"["a",4,"wp"]"#, "", "e[0]"),
        (r#"{"line":1,"op":"note","text":"b c"}"#, "b c", "b", "text"),
        (r#"{"line":1,"op":"pin","p":"p0","err":"EFAULT"}"#, "EFAULT", "EINVAL", "err"),
        (r#"{"line":1,"op":"read","p":"p0","sig":"SIGBUS","after":3}"#, "BUS", "SEGV", "sig"),
        (r#"{"line":1,"op":"read","p":"p0","sig":"SIGBUS","after":3}"#, "3}", "2}", "after"),
    ] {
        planted(record, old, new, key);
        // A process sees all of these.
        let changed = record.replacen(old, new, 1);
        let difference = compare(record, &changed, Mode::ContentOnly, &Capabilities::least());
        assert_eq!(difference.unwrap().key, key);
        let missing = compare(record, "", Mode::ContentOnly, &Capabilities::least());
        assert_eq!(missing.unwrap().got, "nothing");
    }
    // Another kind of answer on the same line is shown whole.
    let signal = r#"{"line":1,"op":"read","p":"p0","sig":"SIGBUS","after":3}"#;
    let error = r#"{"line":1,"op":"read","p":"p0","err":"ENOMEM"}"#;
    assert_eq!(full(signal, error).unwrap().got, r#"{"p":"p0","err":"ENOMEM"}"#);
    // And another operation, too.
    let write = signal.replace("read", "write");
    assert_eq!(full(signal, &write).unwrap().key, "");
}

#[test]
fn keys_of_vmas() {
    let vmas = r#"{"line":2,"op":"vmas","p":"p0","r":"a","v":[{"at":0,"n":16,"prot":"rw-p","Rss":16,"Private_Dirty":16,"Anonymous":16,"fl":"rd wr mr mw me ac"}]}"#;
    for (old, new, key, keeps) in [
        (r#""n":16"#, r#""n":15"#, "v[0].n", None),
        ("rw-p", "r--p", "v[0].prot", None),
        (r#""Rss":16"#, r#""Rss":15"#, "v[0].Rss", Some(Keeps::VMA_COUNTS)),
        (r#""Anonymous":16,"#, "", "v[0].Anonymous", Some(Keeps::VMA_COUNTS)),
        (
            r#""Private_Dirty":16"#,
            r#""Private_Clean":16"#,
            "v[0].Private_Dirty",
            Some(Keeps::VMA_DIRTY),
        ),
        ("me ac", "me", "v[0].fl", Some(Keeps::VMA_FLAGS)),
    ] {
        let changed = vmas.replacen(old, new, 1);
        assert_eq!(full(vmas, &changed).unwrap().key, key);
        let least = compare(vmas, &changed, Mode::Full, &Capabilities::least());
        assert_eq!(least.is_some(), keeps.is_none(), "{key}");
        if let Some(keeps) = keeps {
            let only = Capabilities { keeps, ..Capabilities::least() };
            assert_eq!(compare(vmas, &changed, Mode::Full, &only).unwrap().key, key);
            let without = Capabilities { keeps: !keeps, ..Capabilities::all() };
            assert_eq!(compare(vmas, &changed, Mode::Full, &without), None);
        }
    }
    planted(vmas, r#"{"at":0,"n":16,"#, r#"{"at":1,"n":16,"#, "v[0].at");
}

#[test]
fn stats_are_compared_by_the_counters_of_the_model() {
    let stats = r#"{"line":9,"op":"stats","d":{"64kB.anon_fault_alloc":2,"pswpin":1}}"#;
    planted(stats, r#"alloc":2"#, r#"alloc":3"#, "d.64kB.anon_fault_alloc");
    planted(stats, r#","pswpin":1"#, "", "d.pswpin");
    let name = StatKey::from_name("16kB.anon_fault_alloc").unwrap().counter();
    let model = Capabilities { counters: [name].into(), ..Capabilities::least() };
    let got = stats.replace(r#","pswpin":1"#, r#","thp_split_pmd":7"#);
    assert_eq!(compare(stats, &got, Mode::Full, &model), None);
    let got = stats.replace("64kB", "16kB");
    let difference = compare(stats, &got, Mode::Full, &model).unwrap();
    assert_eq!(
        difference.to_string(),
        "line 9: stats d.64kB.anon_fault_alloc: expected 2, got nothing"
    );
}

#[test]
fn content_only_leaves_the_way_there_alone() {
    let stats = r#"{"line":9,"op":"stats","d":{"pswpin":1}}"#;
    let vmas = r#"{"line":9,"op":"vmas","p":"p0","r":"a","v":[]}"#;
    for record in [OBSERVE, FAULTS, stats, vmas] {
        assert_eq!(compare(record, "", Mode::ContentOnly, &Capabilities::all()), None);
        assert_eq!(compare("", record, Mode::ContentOnly, &Capabilities::all()), None);
    }
}

#[test]
fn the_first_line_wins() {
    let text = |a, b| {
        format!(
            "{{\"line\":3,\"op\":\"note\",\"text\":\"{a}\"}}\n{{\"line\":5,\"op\":\"note\",\"text\":\"{b}\"}}\n"
        )
    };
    assert_eq!(full(&text("a", "b"), &text("a", "c")).unwrap().line, 5);
    assert_eq!(full(&text("a", "b"), &text("b", "c")).unwrap().line, 3);
    let twice = text("a", "b").replace(":5", ":3");
    assert_eq!(full(&text("a", "b"), &twice).unwrap().line, 3);
}

/// The derived goldens say nothing else than mainline outside of the lines that they mark.
#[test]
fn derived_goldens_differ_where_they_say() {
    for entry in corpus::handed().unwrap() {
        let golden = Record::read_all(entry.golden.as_ref().unwrap()).unwrap();
        let all = Capabilities::all();
        assert_eq!(first_difference(&golden, &golden, Mode::Full, &all), None, "{}", entry.name);
        let Some(derived) = &entry.seed003 else { continue };
        let derived = Record::read_all(derived).unwrap();
        assert_eq!(first_difference(&derived, &derived, Mode::Full, &all), None, "{}", entry.name);
        let differs: Vec<u32> = derived
            .iter()
            .zip(&golden)
            .filter(|(derived, golden)| {
                let (derived, golden) = ([(*derived).clone()], [(*golden).clone()]);
                first_difference(&derived, &golden, Mode::Full, &all).is_some()
            })
            .map(|(derived, _)| derived.line)
            .collect();
        let row = entry.manifest.unwrap().differs_by_design_lines;
        let listed: Vec<u32> = row.split(',').map(|line| line.parse().unwrap()).collect();
        assert_eq!(differs, listed, "{}", entry.name);
    }
}
