//! Advice on mappings, as scenarios see it.

use crate::common::{printed, prints};

/// Locked memory refuses the one and gives its pages up for the other; it stays locked, and
/// what is touched next is too.
///
/// Rules: MADV-01, MADV-08.
#[test]
fn locked_memory_can_be_discarded_on_purpose() {
    prints(
        "mmap p0 a 8 anon rw private\n\
         write p0 a 3\n\
         mlock p0 a:0+4\n\
         madvise p0 a:0+2 dontneed\n\
         content p0 a:0+2\n\
         madvise p0 a:2+4 dontneed_locked\n\
         content p0 a\n\
         vmas p0 a\n\
         observe p0 a:2+4\n\
         munmap p0 a:6\n\
         madvise p0 a:5+3 dontneed_locked\n\
         content p0 a:7\n",
        &[
            r#"{"line":4,"op":"madvise","p":"p0","err":"EINVAL"}"#,
            r#"{"line":5,"op":"content","p":"p0","r":"a","c":[[0,2,"3"]]}"#,
            r#"{"line":7,"op":"content","p":"p0","r":"a","c":[[0,2,"3"],[2,4,"0"],[6,2,"3"]]}"#,
            r#"{"line":8,"op":"vmas","p":"p0","r":"a","v":[{"at":0,"n":4,"prot":"rw-p","Rss":2,"Private_Dirty":2,"Anonymous":2,"Locked":2,"fl":"rd wr mr mw me lo ac"},{"at":4,"n":4,"prot":"rw-p","Rss":2,"Private_Dirty":2,"Anonymous":2,"fl":"rd wr mr mw me ac"}]}"#,
            r#"{"line":9,"op":"observe","t":[{"p":"p0","r":"a","at":2,"n":4,"runs":[{"at":2,"n":4,"s":"zero"}]}],"folios":[]}"#,
            r#"{"line":11,"op":"madvise","p":"p0","err":"ENOMEM"}"#,
            r#"{"line":12,"op":"content","p":"p0","r":"a","c":[[7,1,"0"]]}"#,
        ],
    );
}

/// What is removed is a hole of the object, for all who show it; private copies stay.
///
/// Rules: ZAP-08, MADV-08.
#[test]
fn removed_pages_are_holes_of_their_object() {
    prints(
        "file f memfd 8 fill=5\n\
         mmap p0 a 8 file:f rw shared\n\
         mmap p0 b 8 file:f rw private\n\
         write p0 b:2 7\n\
         read p0 a\n\
         read p0 b\n\
         fork p1 p0\n\
         madvise p0 a:1+3 remove\n\
         content p1 a\n\
         content p0 b:0+4\n\
         fcontent f\n\
         write p1 a:2 9\n\
         content p0 a:1+3\n\
         content p0 b:2\n",
        &[
            r#"{"line":9,"op":"content","p":"p1","r":"a","c":[[0,1,"5"],[1,3,"0"],[4,4,"5"]]}"#,
            r#"{"line":10,"op":"content","p":"p0","r":"b","c":[[0,1,"5"],[1,1,"0"],[2,1,"7"],[3,1,"0"]]}"#,
            r#"{"line":11,"op":"fcontent","file":"f","c":[[0,1,"5"],[1,3,"0"],[4,4,"5"]]}"#,
            r#"{"line":13,"op":"content","p":"p0","r":"a","c":[[1,1,"0"],[2,1,"9"],[3,1,"0"]]}"#,
            r#"{"line":14,"op":"content","p":"p0","r":"b","c":[[2,1,"7"]]}"#,
        ],
    );
}

/// Rules: MADV-08.
#[test]
fn what_cannot_be_removed() {
    prints(
        "file f ext4 8 fill=5\n\
         mmap p0 a 8 anon rw private\n\
         mmap p0 b 8 file:f rw private\n\
         mmap p0 c 8 file:f rw shared\n\
         mmap p0 s 8 anon rw shared\n\
         write p0 s 4\n\
         mlock p0 c:4+4\n\
         madvise p0 a remove\n\
         madvise p0 b remove\n\
         madvise p0 c:2+4 remove\n\
         content p0 c\n\
         munmap p0 s:3\n\
         madvise p0 s:1+4 remove\n\
         content p0 s:1+2\n\
         content p0 s:4+2\n\
         mprotect p0 s:5 r\n\
         madvise p0 s:5 remove\n\
         content p0 s:5\n",
        &[
            r#"{"line":8,"op":"madvise","p":"p0","err":"EINVAL"}"#,
            r#"{"line":9,"op":"madvise","p":"p0","err":"EACCES"}"#,
            r#"{"line":10,"op":"madvise","p":"p0","err":"EINVAL"}"#,
            // Below the locked part it is done.
            r#"{"line":11,"op":"content","p":"p0","r":"c","c":[[0,2,"5"],[2,2,"0"],[4,4,"5"]]}"#,
            // A hole in the range stops nothing.
            r#"{"line":13,"op":"madvise","p":"p0","err":"ENOMEM"}"#,
            r#"{"line":14,"op":"content","p":"p0","r":"s","c":[[1,2,"0"]]}"#,
            r#"{"line":15,"op":"content","p":"p0","r":"s","c":[[4,1,"0"],[5,1,"4"]]}"#,
            // It may be written to, if not now.
            r#"{"line":18,"op":"content","p":"p0","r":"s","c":[[5,1,"0"]]}"#,
        ],
    );
}

/// What an object has in swap counts for every mapping that shows it and has nothing there: not
/// for places with a page, nor with a private copy, which counts itself when it is in swap.
///
/// Rules: INV-6, MADV-09.
#[test]
fn swap_of_shared_memory_is_shown_by_all_its_mappings() {
    let swap = |line, at, n, p: &str, r: &str| {
        format!(r#"{{"line":{line},"op":"vmas","p":"{p}","r":"{r}","v":[{{"at":{at},"n":{n}"#)
    };
    let expected = [
        (10, swap(10, 0, 8, "p0", "a"), 2, 5),
        (11, swap(11, 0, 4, "p1", "a"), 1, 3),
        (13, swap(13, 0, 8, "p0", "a"), 2, 5),
        (22, swap(22, 0, 8, "p0", "c"), 1, 7),
        (24, swap(24, 0, 8, "p0", "c"), 0, 8),
    ];
    let lines = "swap 16M\n\
         file m memfd 8 fill=3\n\
         mmap p0 a 8 anon rw shared\n\
         write p0 a 1\n\
         madvise p0 a:0+6 pageout\n\
         fork p1 p0\n\
         munmap p1 a:4+4\n\
         read p1 a:1\n\
         note page 1 is back, and p0 does not map it\n\
         vmas p0 a\n\
         vmas p1 a\n\
         madvise p0 a:2+2 willneed\n\
         vmas p0 a\n\
         exit p1\n\
         mmap p0 b 8 file:m rw shared\n\
         mmap p0 c 8 file:m rw private\n\
         write p0 c:2 5\n\
         read p0 b\n\
         madvise p0 b pageout\n\
         note the copy is a page of c alone\n\
         observe p0 c\n\
         vmas p0 c\n\
         madvise p0 c pageout\n\
         vmas p0 c\n";
    let got = printed(lines);
    for (line, starts, rss, swapped) in expected {
        let prefix = format!(r#"{{"line":{line},"#);
        let shown = got.iter().find(|r| r.starts_with(&prefix)).expect("printed");
        assert!(shown.starts_with(&starts), "{shown}");
        assert_eq!((count(shown, "Rss"), count(shown, "Swap")), (rss, swapped), "{shown}");
    }
}
/// The number behind a key, 0 if it is not there.
fn count(json: &str, key: &str) -> u64 {
    let Some((_, rest)) = json.split_once(&format!(r#""{key}":"#)) else { return 0 };
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// What a process gives up while it is pinned stays where it is: the process stores to it again, and
/// the pin sees that. Refused advice gives nothing up.
///
/// Rules: MADV-04, MADV-08.
#[test]
fn what_is_given_up_while_it_is_pinned_is_seen_by_both() {
    prints(
        "mmap p0 a 4 anon rw private\n\
         write p0 a 1\n\
         pin p0 a x uring\n\
         madvise p0 a free\n\
         write p0 a:1+3 2\n\
         pinread p0 x\n\
         pinwrite p0 x 3\n\
         content p0 a\n\
         mlock p0 a:2+2\n\
         madvise p0 a free\n\
         write p0 a 4\n\
         pinread p0 x\n",
        &[
            r#"{"line":6,"op":"pinread","p":"p0","pin":"x","c":[[0,1,"1"],[1,3,"2"]]}"#,
            r#"{"line":8,"op":"content","p":"p0","r":"a","c":[[0,4,"3"]]}"#,
            r#"{"line":10,"op":"madvise","p":"p0","err":"EINVAL"}"#,
            r#"{"line":12,"op":"pinread","p":"p0","pin":"x","c":[[0,4,"4"]]}"#,
        ],
    );
}
