//! Why a run ended early.

use super::Feature;
use crate::{AuditViolation, MachineError};

/// Why a run ended early. Prints as one line that names file and line.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum RunError {
    /// The entry format has no such thing: nothing that a machine of it could do.
    #[error("{file}:{line}: {arch} has no {feature}")]
    Lacks {
        /// What it lacks.
        feature: Feature,
        /// The format.
        arch: &'static str,
        /// The scenario.
        file: String,
        /// The first line that needs it.
        line: u32,
    },
    /// A region does not fit the windows that regions have on this format.
    #[error("{file}: region {region} does not fit the windows of {arch}, {bytes} bytes each")]
    Window {
        /// The scenario.
        file: String,
        /// The region.
        region: String,
        /// The format.
        arch: &'static str,
        /// Bytes of a window.
        bytes: u64,
    },
    /// The operation asks for more memory than the machine has.
    #[error("{file}:{line}: {op}: {pages} pages are more than the {available} of the machine")]
    TooLarge {
        /// The scenario.
        file: String,
        /// The line.
        line: u32,
        /// The operation.
        op: &'static str,
        /// Pages asked for.
        pages: u64,
        /// Pages that there are.
        available: u64,
    },
    /// Not even the first process could be made.
    #[error("{file}:{line}: {why}")]
    NoMemory {
        /// The scenario.
        file: String,
        /// The line.
        line: u32,
        /// What failed.
        why: String,
    },
    /// A page fault never ended.
    #[error("{file}:{line}: {what}")]
    Stuck {
        /// The scenario.
        file: String,
        /// The line.
        line: u32,
        /// Which.
        what: String,
    },
    /// The machine is in a state that must not exist.
    #[error("{file}:{line}: after {op}: {}", first_of(.found))]
    Audit {
        /// The scenario.
        file: String,
        /// The line, 0 for the end of the scenario.
        line: u32,
        /// The operation.
        op: &'static str,
        /// What was found.
        found: Vec<AuditViolation>,
    },
    /// The machine could not be built.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The runner contradicts itself.
    #[error("internal error: {0}")]
    Internal(String),
}

impl RunError {
    /// Whether the input asked for something that makes no sense on this
    /// machine, rather than something that went wrong.
    pub fn is_bad_input(&self) -> bool {
        matches!(self, RunError::TooLarge { .. } | RunError::Window { .. } | RunError::Machine(_))
    }
}

fn first_of(found: &[AuditViolation]) -> String {
    match found {
        [] => "nothing found".into(),
        [one] => one.to_string(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
    }
}
