//! `stag lab chart`: charts of runs that `stag bench` printed.

use std::fs;
use std::path::PathBuf;

use lab::printed::{self, Drawn};
use lab::{pgf, plot};

use super::{failed, print};
use crate::args::lab::LabChart;
use crate::exit::Exit;

pub fn chart(args: &LabChart) -> Exit {
    let documents: Result<Vec<_>, _> = args.files.iter().map(|path| printed::read(path)).collect();
    let drawn = match documents {
        Ok(documents) => printed::charts(&documents),
        Err(error) => return failed(&error, Exit::Failed),
    };
    if drawn.is_empty() {
        return failed(&"these runs have neither latencies nor intervals", Exit::Failed);
    }
    match write(args, &drawn) {
        Ok(paths) => print(&paths.iter().map(|path| format!("{}\n", path.display())).collect::<String>()),
        Err(why) => failed(&why, Exit::Failed),
    }
}

fn write(args: &LabChart, drawn: &[Drawn]) -> Result<Vec<PathBuf>, String> {
    fs::create_dir_all(&args.out).map_err(|error| format!("{}: {error}", args.out.display()))?;
    let mut paths = Vec::new();
    for Drawn { file, chart } in drawn {
        let source = args.pgf.then(|| ("pgf", pgf::picture(chart)));
        for (ending, text) in [("svg", plot::alone(&plot::draw(chart)))].into_iter().chain(source) {
            let path = args.out.join(format!("{file}.{ending}"));
            fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
            paths.push(path);
        }
    }
    Ok(paths)
}
