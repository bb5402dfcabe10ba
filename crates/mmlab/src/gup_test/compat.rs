//! The lines of the kernel's tool, letter for letter (rule BENCH-09).

use super::lines::Line;

/// Before all threads.
pub fn header(threads: u64) -> [String; 2] {
    ["TAP version 13".to_owned(), format!("1..{threads}")]
}

/// About one pass. The tool puts `# ` before every piece that it prints, so that a
/// line of a benchmark, which it prints in pieces, also ends with one.
pub fn lines(line: &Line<'_>) -> Vec<String> {
    let (name, pass) = (line.mode.name(), line.pass);
    // A chunk that was served in part counts as a whole one (rule BENCH-05).
    let size = pass.asked as u64 * 4096;
    let truncated = size != line.bed.range.bytes();
    if line.mode.is_benchmark() {
        let note = if truncated { format!("# , truncated (size: {size})") } else { String::new() };
        let (get, put) = (pass.get_us, pass.put_us);
        return vec![format!("# {name}: Time: get:{get:.0} put:{put:.0} us{note}# ")];
    }
    let mut lines = vec![format!("# {name}: done")];
    if truncated {
        lines.push(format!("# Truncated (size: {size})"));
    }
    lines
}

/// At the end of the `nth` thread to end.
pub fn result(nth: u64, passed: bool) -> String {
    match passed {
        true => format!("ok {nth} ioctl status 0"),
        false => format!("not ok {nth} ioctl status -1"),
    }
}

/// Behind all threads.
pub fn totals([passed, failed]: [u64; 2]) -> String {
    format!("# Totals: pass:{passed} fail:{failed} xfail:0 xpass:0 skip:0 error:0")
}
