//! The program behind `stag lab`, which starts it.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    stag::run_lab()
}
