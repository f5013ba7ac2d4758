//! `stag lab verify`: checks results that somebody hands on.

use lab::verify::{Verified, verify};

use super::{failed, print};
use crate::args::lab::LabVerify;
use crate::exit::Exit;

pub fn check(args: &LabVerify) -> Exit {
    let verified = match verify(&args.dir) {
        Ok(verified) => verified,
        Err(error) => return failed(&error, Exit::Failed),
    };
    let text = match args.json {
        true => serde_json::to_string_pretty(&verified).unwrap_or_default() + "\n",
        false => told(&verified),
    };
    match print(&text) {
        Exit::Done if !verified.wrong.is_empty() => Exit::Failed,
        exit => exit,
    }
}

fn told(verified: &Verified) -> String {
    let Verified { files, records, recomputed, distributions, counted, verdicts, wrong } = verified;
    let mut text = format!(
        "{files} files are those that the report was written with\n\
         {records} runs: {recomputed} figures follow from what the tools printed; {counted} the lab counted itself\n"
    );
    if *distributions > 0 {
        text += &format!("{distributions} runs have their latencies, which agree with their percentiles\n");
    }
    if !wrong.iter().any(|one| one.starts_with("report")) {
        text += &format!("the report's figures and verdicts ({verdicts}) follow from the runs\n");
    }
    for one in wrong {
        text += &format!("WRONG: {one}\n");
    }
    text
}
