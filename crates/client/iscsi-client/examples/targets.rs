//! Lists the targets behind a portal: `cargo run -p iscsi-client --example targets --
//! iscsi://HOST[:PORT]`.

use iscsi_client::{Options, Url, discover};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url: Url = std::env::args().nth(1).ok_or("usage: targets iscsi://HOST[:PORT]")?.parse()?;
    let runtime = runtime::Runtime::new(runtime::Config::default())?;
    for record in runtime.block_on(discover(&url, &Options::default()))? {
        for address in &record.addresses {
            println!("{} at {address}", record.name);
        }
    }
    Ok(())
}
