//! Prints what a scenario does and what a real kernel answered.
//!
//! ```text
//! cargo run -p mm-scenario --example explain [FILE.scn]
//! ```

use std::path::PathBuf;
use std::process::ExitCode;

use mm_scenario::observe::{Body, Record};
use mm_scenario::{Scenario, Windows, corpus};

fn main() -> ExitCode {
    let path = std::env::args_os().nth(1).map_or_else(
        || [corpus::handed_dir(), "reuse_64kb.scn"].iter().collect::<PathBuf>(),
        PathBuf::from,
    );
    match explain(&path) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}

fn explain(path: &std::path::Path) -> Result<(), Box<dyn std::error::Error>> {
    let entry = corpus::Entry::load(path)?;
    let scenario = Scenario::parse(&path.display().to_string(), &entry.text)?;
    if let Some(row) = &entry.manifest {
        println!("{}: {}", row.name, row.about);
    }
    for (_, region) in scenario.regions() {
        println!("region {} starts at {:#x}", region.name, Windows::WIDE.address(region, 0));
    }
    let golden = Record::read_all(entry.golden.as_deref().unwrap_or_default())?;
    for line in &scenario.ops {
        let text = entry.text.lines().nth(line.line_no as usize - 1).unwrap_or_default();
        println!("{:4} {text}", line.line_no);
        for record in golden.iter().filter(|record| record.line == line.line_no) {
            match &record.body {
                Body::Faults(faults) => {
                    println!("     -> {} faults by the CPU", faults.min + faults.maj)
                }
                Body::Observe(observe) => {
                    for target in &observe.t {
                        println!("     -> {} {}: {} runs", target.p, target.r, target.runs.len());
                    }
                }
                _ => println!("     -> {}", record.to_json()),
            }
        }
    }
    Ok(())
}
