//! Without arguments: writes the seeds of all fuzz targets to `fuzz/corpus`, removing seeds that
//! are no more. With TARGET and files: runs the target on each, showing what passes if `FUZZ_TRACE`
//! is set.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    match args.next() {
        None => write_seeds()?,
        Some(name) => {
            let target = stag_fuzz_entry::target(&name).ok_or("no such target")?;
            for file in args {
                (target.run)(&std::fs::read(file)?);
            }
        }
    }
    Ok(())
}

fn write_seeds() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    for target in stag_fuzz_entry::TARGETS {
        let dir = corpus.join(target.name);
        if dir.exists() {
            std::fs::remove_dir_all(&dir)?;
        }
        std::fs::create_dir_all(&dir)?;
        for (name, seed) in (target.seeds)() {
            std::fs::write(dir.join(name), seed.into_bytes())?;
        }
    }
    Ok(())
}
