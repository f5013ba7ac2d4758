//! Writes the seeds of all fuzz targets to `fuzz/corpus`, removing seeds that are no more.

use std::path::Path;

fn main() -> std::io::Result<()> {
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
