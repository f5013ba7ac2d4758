//! Prints the first blocks of a disk: `cargo run -p iscsi-client --example hexdump --
//! iscsi://HOST/IQN/LUN [BLOCKS]`.

use iscsi_client::{Disk, Error, Options, Session, Url};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url: Url = args.next().ok_or("usage: hexdump iscsi://HOST/IQN/LUN [BLOCKS]")?.parse()?;
    let blocks: u32 = args.next().map_or(Ok(1), |n| n.parse())?;
    let runtime = runtime::Runtime::new(runtime::Config::default())?;
    Ok(runtime.block_on(show(&url, blocks))?)
}

async fn show(url: &Url, blocks: u32) -> Result<(), Error> {
    let session = Session::connect(url, Options::default()).await?;
    let disk = Disk::open(&session, url.lun.unwrap_or(0)).await?;
    println!("{}: {} blocks of {} bytes", disk.inquiry().await?.product, disk.blocks(), disk.block_len());
    let data = disk.read(0, blocks).await?.to_vec();
    for (line, bytes) in data.chunks(16).enumerate() {
        let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let text: String =
            bytes.iter().map(|b| if b.is_ascii_graphic() { *b as char } else { '.' }).collect();
        println!("{:08x}  {:47}  {text}", line * 16, hex.join(" "));
    }
    session.close().await
}
