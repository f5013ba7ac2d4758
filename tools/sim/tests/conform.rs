//! `stag conform` in worlds: the server passes all of it, in simulated time.

use std::ops::Range;

use conform::Outcome;
use sim::conformance::{Subject, judge};

/// Runs all checks of a subject. Those whose full names begin with one of `apart_from` do not apply
/// to it, or cannot be tested.
fn passes(subject: Subject, seeds: Range<u64>, least: usize, apart_from: &[&str]) {
    for seed in seeds {
        let report = judge(subject, seed).expect("the checks begin");
        let mut passed = 0;
        let mut wrong = Vec::new();
        for record in &report.records {
            let name = record.check.full_name();
            let excused = apart_from.iter().any(|part| name.starts_with(part));
            match &record.outcome {
                Outcome::Pass => passed += 1,
                Outcome::NotApplicable(_) | Outcome::Untested(_) if excused => {}
                outcome => wrong.push((name, outcome)),
            }
        }
        assert!(wrong.is_empty(), "{subject:?}, seed {seed}: {wrong:#?}");
        assert!(passed >= least, "{subject:?}: only {passed} passed");
        assert_eq!(report.left_behind, None);
    }
}

/// Checks of redirections, of a target that refuses too many keys, and of pings that come only
/// after 10 s of silence.
const USUAL: [&str; 3] = ["redirect/", "login/answers-fit-a-segment", "nop/own-pings"];

#[test]
fn the_target_passes_over_tcp() {
    passes(Subject::Tcp, 0..3, 300, &[&USUAL[..], &["security/"]].concat());
}

#[test]
fn the_target_passes_with_chap() {
    // Before CHAP the target reveals no names and sessions.
    passes(Subject::Chap, 0..2, 300, &[&USUAL[..], &["login/unknown-target", "login/unknown-tsih"]].concat());
}

#[test]
fn the_target_passes_over_iser() {
    passes(Subject::Iser, 0..2, 200, &[&USUAL[..], &["security/", "connections/"]].concat());
}

#[test]
fn the_server_of_files_passes() {
    passes(Subject::Share, 0..2, 150, &["v4-opens/removed-while-open", "v42/clone"]);
}
