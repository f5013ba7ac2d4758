//! `stag lab report`: writes the report of a folder of results.

use lab::report::Written;
use lab::results;

use super::{failed, print};
use crate::args::lab::LabReport;
use crate::exit::Exit;

pub fn report(args: &LabReport) -> Exit {
    let results = match results::read_all(&args.dir) {
        Ok(results) => results,
        Err(error) => return failed(&error, Exit::Failed),
    };
    let out = args.out.clone().unwrap_or_else(|| args.dir.join("report"));
    let written = match lab::report::write(&results, &out, args.pgf) {
        Ok(written) => written,
        Err(error) => return failed(&error, Exit::Failed),
    };
    if out.starts_with(&args.dir) {
        if let Err(error) = lab::verify::seal(&args.dir) {
            return failed(&error, Exit::Failed);
        }
    }
    if args.json || args.markdown {
        say!("{}", told(&written).trim_end());
        let path = out.join(if args.json { "report.json" } else { "results.md" });
        return match std::fs::read_to_string(&path) {
            Ok(text) => print(&text),
            Err(error) => failed(&format!("{}: {error}", path.display()), Exit::Failed),
        };
    }
    print(&told(&written))
}

/// The written files, in words.
pub fn told(written: &Written) -> String {
    let mut text = format!(
        "{}: {} charts, {} of them as PNG too\n",
        written.page.display(),
        written.charts,
        written.pngs
    );
    if let Some(why) = &written.no_png {
        text += &format!("no PNG: {why}\n");
    }
    text
}
