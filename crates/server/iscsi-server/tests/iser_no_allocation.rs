//! Once warm, the data path over iSER does not allocate: READ and WRITE commands of every size,
//! answered by a whole server.

#[allow(dead_code, reason = "not every test uses all of it")]
mod support;

use std::time::Duration;

use runtime::testing::Counting;
use support::iser::{Client, pattern, run};
use support::{BLOCKS, ONE, address, read10, server_on, write10};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Commands in flight at once.
const BATCH: u32 = 16;

async fn batch(client: &mut Client, blocks: u16, data: Option<&[u8]>, round: u32) {
    let mut stags = Vec::new();
    for i in 0..BATCH {
        let lba = (round * 61 + i * 97) * u32::from(blocks) % (BLOCKS as u32 - u32::from(blocks));
        stags.push(match data {
            None => client.start_read(0, &read10(lba, blocks), usize::from(blocks) * 512).1,
            Some(data) => client.start_write(0, &write10(lba, blocks), data, data.len().min(8192)).1,
        });
    }
    for _ in 0..BATCH {
        assert_eq!(client.receive().await.expect("an answer").status().0, 0);
    }
    for stag in stags {
        client.pair.withdraw(stag).expect("it is exposed");
    }
}

#[test]
fn a_warm_data_path_over_iser_does_not_allocate() {
    Counting::ignore_this_thread();
    let server = server_on(ONE, |_| ());
    let mut found = Vec::new();
    run(async {
        let mut client = Client::login(address(&server), 1).await;
        client.settle(0).await;
        for blocks in [1u16, 8, 16, 128, 512] {
            let data = pattern(usize::from(blocks) * 512, 1);
            let rounds = if blocks > 16 { 10 } else { 50 };
            for (name, data) in [("READ", None), ("WRITE", Some(&data[..]))] {
                // The least of a few counts: they depend on the number of commands that ran at
                // once.
                let mut least = u64::MAX;
                for time in 0..6 {
                    let before = Counting::allocations();
                    for round in 0..rounds {
                        batch(&mut client, blocks, data, time * rounds + round).await;
                    }
                    if time > 0 {
                        least = least.min(Counting::allocations() - before);
                    }
                    if least == 0 {
                        break;
                    }
                }
                if least > 0 {
                    found.push(format!("{name} of {blocks} blocks: {least} in {} commands", rounds * BATCH));
                }
            }
        }
    });
    assert!(found.is_empty(), "{found:#?}");
    server.stop(Duration::from_millis(100)).expect("everything is flushed");
}
