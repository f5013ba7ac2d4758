//! Copies between a disk in memory, files and streams.

use std::cell::{Cell, RefCell};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;

use runtime::{Runtime, yield_now};

use super::*;

/// A disk in memory that counts what is done to it.
#[derive(Default)]
struct Memory {
    bytes: RefCell<Vec<u8>>,
    block: u32,
    thin: bool,
    fails_at: Option<u64>,
    corrupts: bool,
    unmapped: Cell<u64>,
    written: Cell<u64>,
    most_at_once: Cell<usize>,
    at_once: Cell<usize>,
    synced: Cell<bool>,
    /// After so many written bytes its target loses power once, and with it all of them.
    loses_after: Cell<Option<u64>>,
    reconnects: Cell<u64>,
}

impl Memory {
    fn new(bytes: Vec<u8>, block: u32) -> Self {
        Self { bytes: RefCell::new(bytes), block, ..Self::default() }
    }

    async fn enter(&self, at: u64, len: u64) {
        assert_eq!((at % u64::from(self.block), len % u64::from(self.block)), (0, 0), "unaligned");
        self.at_once.set(self.at_once.get() + 1);
        self.most_at_once.set(self.most_at_once.get().max(self.at_once.get()));
        // Pieces overtake each other.
        for _ in 0..(at / 4096 * 7 + 3) % 5 {
            yield_now().await;
        }
        self.at_once.set(self.at_once.get() - 1);
    }
}

impl Disk for Memory {
    fn place(&self) -> String {
        "memory".into()
    }
    fn block_bytes(&self) -> u32 {
        self.block
    }
    fn bytes(&self) -> u64 {
        self.bytes.borrow().len() as u64
    }
    async fn read(&self, at: u64, len: usize) -> Result<Chain, RemoteError> {
        self.enter(at, len as u64).await;
        Ok(Chain::from(self.bytes.borrow()[at as usize..at as usize + len].to_vec()))
    }
    async fn write(&self, at: u64, data: Chain) -> Result<(), RemoteError> {
        self.enter(at, data.len() as u64).await;
        if self.fails_at.is_some_and(|bad| (at..at + data.len() as u64).contains(&bad)) {
            return Err(iscsi_client::Error::Closed.into());
        }
        self.written.set(self.written.get() + data.len() as u64);
        let mut bytes = self.bytes.borrow_mut();
        data.copy_to_slice(&mut bytes[at as usize..at as usize + data.len()]);
        if self.corrupts {
            bytes[at as usize] ^= 1;
        }
        if self.loses_after.get().is_some_and(|after| self.written.get() >= after) {
            self.loses_after.set(None);
            self.reconnects.set(self.reconnects.get() + 1);
            bytes.fill(0xff);
        }
        Ok(())
    }
    fn reconnects(&self) -> u64 {
        self.reconnects.get()
    }
    async fn zero(&self, at: u64, len: u64) -> Result<bool, RemoteError> {
        if !self.thin {
            return Ok(false);
        }
        self.enter(at, len).await;
        self.unmapped.set(self.unmapped.get() + len);
        self.bytes.borrow_mut()[at as usize..(at + len) as usize].fill(0);
        Ok(true)
    }
    async fn sync(&self) -> Result<(), RemoteError> {
        self.synced.set(true);
        Ok(())
    }
}

fn plan() -> Plan {
    Plan {
        work: Work::Copy,
        from_at: 0,
        to_at: 0,
        length: None,
        chunk: 4096,
        depth: 8,
        sparse: true,
        verify: false,
        sync: true,
        pace: None,
    }
}

fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u32;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8 | 1
        })
        .collect()
}

fn run<T>(future: impl Future<Output = T>) -> T {
    Runtime::new(runtime::Config::default()).unwrap().block_on(future)
}

/// A writer whose bytes can be looked at afterwards.
#[derive(Clone, Default)]
struct Shared(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_unit_is_copied_to_a_unit_with_many_chunks_at_once() {
    run(async {
        let from = Rc::new(Memory::new(noise(1 << 20), 512));
        let to = Rc::new(Memory::new(vec![0xff; 2 << 20], 4096));
        let mut told = 0;
        let done =
            copy(Source::Unit(from.clone()), Sink::Unit(to.clone()), &plan(), |n| told += n).await.unwrap();
        assert_eq!((done.bytes, done.holes, told), (1 << 20, 0, 1 << 20));
        assert_eq!(to.bytes.borrow()[..1 << 20], from.bytes.borrow()[..]);
        assert!(to.bytes.borrow()[1 << 20..].iter().all(|byte| *byte == 0xff));
        assert!(to.synced.get());
        assert!(from.most_at_once.get() > 4, "{}", from.most_at_once.get());
    });
}

#[test]
fn any_offset_and_length_touch_no_byte_beside_them() {
    let source = noise(100_000);
    for (from_at, to_at, length) in
        [(0, 0, 1), (1, 4095, 2), (511, 513, 9000), (7, 4096, 4096), (3, 12_345, 50_001)]
    {
        for (block, chunk) in [(512, 4096), (4096, 512), (4096, 8192)] {
            let to = Rc::new(Memory::new(noise(131_072), block));
            let mut expected = to.bytes.borrow().clone();
            expected[to_at..to_at + length].copy_from_slice(&source[from_at..from_at + length]);
            let plan = Plan {
                from_at: from_at as u64,
                to_at: to_at as u64,
                length: Some(length as u64),
                chunk,
                verify: true,
                ..plan()
            };
            let mut padded = source.clone();
            padded.resize(source.len().next_multiple_of(512), 0);
            let from = Rc::new(Memory::new(padded, 512));
            run(async { copy(Source::Unit(from), Sink::Unit(to.clone()), &plan, |_| {}).await }).unwrap();
            assert!(*to.bytes.borrow() == expected, "{from_at} {to_at} {length} {block} {chunk}");
        }
    }
}

#[test]
fn zeros_become_unmapped_blocks_and_holes() {
    let dir = tempfile::tempdir().unwrap();
    let (sparse, back) = (dir.path().join("sparse"), dir.path().join("back"));
    let mut file = std::fs::File::create(&sparse).unwrap();
    file.set_len(200 << 20).unwrap();
    file.seek(SeekFrom::Start(100 << 20)).unwrap();
    file.write_all(&noise(8192)).unwrap();
    run(async {
        let unit = Rc::new(Memory { thin: true, ..Memory::new(vec![0xff; 200 << 20], 512) });
        let plan = Plan { chunk: 1 << 20, ..plan() };
        let done = copy(open_input(&sparse).unwrap(), Sink::Unit(unit.clone()), &plan, |_| {}).await.unwrap();
        assert_eq!(done.bytes, 200 << 20);
        assert_eq!(unit.unmapped.get(), done.holes);
        assert!(unit.written.get() <= 1 << 20, "{} bytes were written", unit.written.get());
        copy(Source::Unit(unit), open_output(&back, Work::Copy).unwrap(), &plan, |_| {}).await.unwrap();
    });
    let about = std::fs::metadata(&back).unwrap();
    assert_eq!(about.len(), 200 << 20);
    assert!(about.blocks() * 512 <= 2 << 20, "{} bytes are allocated", about.blocks() * 512);
    assert!(std::fs::read(&sparse).unwrap() == std::fs::read(&back).unwrap());
}

#[test]
fn pieces_share_no_block_of_the_sink_wherever_holes_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sparse");
    let mut file = std::fs::File::create(&path).unwrap();
    file.set_len(1 << 20).unwrap();
    for at in [65_536, 524_288] {
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&noise(8192)).unwrap();
    }
    let plan = Plan { to_at: 512, ..plan() };
    run(async {
        let source: Source<Memory> = open_input(&path).unwrap();
        let length = Some(1 << 20);
        let mut claims = Claims { at: 0, length, room: None, block: 4096, skip_holes: true, done: false };
        let (mut holes, mut end) = (0, 0);
        while let Some(piece) = claims.next(&source, &plan).await.unwrap() {
            assert_eq!(piece.at, end);
            end += piece.len;
            holes += u64::from(piece.hole);
            assert!(end == 1 << 20 || (plan.to_at + end) % 4096 == 0, "a piece ends at {end}");
        }
        assert!(end == 1 << 20 && holes >= 2, "{holes} holes, to byte {end}");
    });
}

#[test]
fn zeros_are_written_to_thick_units_and_without_sparseness() {
    for (thin, sparse) in [(false, true), (true, false)] {
        let to = Rc::new(Memory { thin, ..Memory::new(vec![0xff; 65_536], 512) });
        let from = Rc::new(Memory::new(vec![0; 65_536], 512));
        let plan = Plan { sparse, ..plan() };
        run(async { copy(Source::Unit(from), Sink::Unit(to.clone()), &plan, |_| {}).await }).unwrap();
        assert_eq!((to.unmapped.get(), to.written.get()), (0, 65_536));
        assert!(to.bytes.borrow().iter().all(|byte| *byte == 0));
    }
}

#[test]
fn streams_keep_their_order_whatever_overtakes() {
    let data = noise(300_001);
    let unit = Rc::new(Memory::new(vec![0; 524_288], 512));
    let shared = Shared::default();
    run(async {
        let stdin = Source::Stream(Stream::reader("-", std::io::Cursor::new(data.clone())));
        let done = copy(stdin, Sink::Unit(unit.clone()), &plan(), |_| {}).await.unwrap();
        assert_eq!(done.bytes, 300_001);
        let stdout = Sink::Stream(Stream::writer("-", shared.clone()));
        let plan = Plan { length: Some(300_001), ..plan() };
        copy(Source::Unit(unit), stdout, &plan, |_| {}).await.unwrap();
    });
    assert!(*shared.0.lock().unwrap() == data);
}

#[test]
fn a_stream_of_holes_is_zeros_in_bounded_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hole");
    std::fs::File::create(&path).unwrap().set_len(10 << 20).unwrap();
    let shared = Shared::default();
    run(async {
        let source: Source<Memory> = open_input(&path).unwrap();
        copy(source, Sink::Stream(Stream::writer("-", shared.clone())), &plan(), |n| assert!(n <= 4096)).await
    })
    .unwrap();
    assert!(*shared.0.lock().unwrap() == vec![0; 10 << 20]);
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_written() {
    run(async {
        let to = Rc::new(Memory::new(vec![0; 4096], 512));
        let from = Rc::new(Memory::new(noise(8192), 512));
        let refused = copy(Source::Unit(from.clone()), Sink::Unit(to.clone()), &plan(), |_| {}).await;
        assert!(matches!(refused, Err(CopyError::Misfit(_))));
        assert_eq!(to.written.get(), 0);
        let plan = Plan { length: Some(8193), ..plan() };
        assert!(matches!(
            copy(Source::Unit(from), Sink::Unit(to), &plan, |_| {}).await,
            Err(CopyError::Misfit(_))
        ));
    });
}

#[test]
fn an_error_ends_the_copy_and_names_the_unit() {
    run(async {
        let to = Rc::new(Memory { fails_at: Some(50_000), ..Memory::new(vec![0; 1 << 20], 512) });
        let from = Rc::new(Memory::new(noise(1 << 20), 512));
        let failed = copy(Source::Unit(from), Sink::Unit(to.clone()), &plan(), |_| {}).await.unwrap_err();
        assert!(failed.to_string().starts_with("memory: "), "{failed}");
        assert!(to.written.get() < 200_000, "{} bytes were written after the error", to.written.get());
        assert!(!to.synced.get());
    });
}

#[test]
fn acknowledged_writes_that_a_target_lost_with_its_power_are_written_again() {
    run(async {
        let data = noise(1 << 20);
        let to =
            || Memory { loses_after: Cell::new(Some(512 << 10)), ..Memory::new(vec![0xff; 1 << 20], 512) };
        let (from, lost) = (Rc::new(Memory::new(data.clone(), 512)), Rc::new(to()));
        let done = copy(Source::Unit(from), Sink::Unit(lost.clone()), &plan(), |_| {}).await.unwrap();
        assert_eq!((done.bytes, done.unsure, lost.reconnects.get()), (1 << 20, false, 1));
        assert!(*lost.bytes.borrow() == data && lost.synced.get());
        assert!(lost.written.get() < 2 << 20, "it writes what is missing");
        // A stream cannot be read again.
        let stdin = Source::Stream(Stream::reader("-", std::io::Cursor::new(data)));
        let done = copy(stdin, Sink::Unit(Rc::new(to())), &plan(), |_| {}).await.unwrap();
        assert!(done.unsure);
    });
}

#[test]
fn verifying_finds_what_a_unit_made_of_the_data() {
    run(async {
        let to = Rc::new(Memory { corrupts: true, ..Memory::new(vec![0; 65_536], 512) });
        let from = Rc::new(Memory::new(noise(65_536), 512));
        let plan = Plan { verify: true, ..plan() };
        let differs = copy(Source::Unit(from), Sink::Unit(to), &plan, |_| {}).await;
        assert!(matches!(differs, Err(CopyError::Differs { at: 0, .. })), "{differs:?}");
    });
}

#[test]
fn a_stream_longer_than_the_unit_fails_where_the_unit_ends() {
    run(async {
        let to = Rc::new(Memory::new(vec![0; 8192], 512));
        let stdin = Source::Stream(Stream::reader("-", std::io::repeat(1).take(10_000)));
        let failed = copy(stdin, Sink::Unit(to), &plan(), |_| {}).await.unwrap_err();
        assert!(matches!(failed, CopyError::Misfit(_)), "{failed}");
    });
}

#[test]
fn what_differs_is_found_and_only_that_is_written() {
    let data = noise(100_000);
    let mut other = data.clone();
    (other[5000], other[50_001], other[50_002]) = (0, 0, 0);
    let of = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        bytes.resize(100_352, 9);
        Rc::new(Memory::new(bytes, 512))
    };
    let plan = |work| Plan { work, length: Some(100_000), ..plan() };
    run(async {
        let (from, to) = (of(&data), of(&other));
        let copy =
            async |work| copy(Source::Unit(from.clone()), Sink::Unit(to.clone()), &plan(work), |_| {}).await;
        let found = copy(Work::Check).await;
        assert!(
            matches!(found, Err(CopyError::Unequal { bytes: 3, of: 100_000, first: 5000, .. })),
            "{found:?}"
        );
        assert_eq!((to.written.get(), to.synced.get()), (0, false));
        let done = copy(Work::Differing).await.unwrap();
        assert_eq!((done.bytes, done.there, to.written.get()), (100_000, 100_000 - 8192, 8192));
        assert!(to.bytes.borrow()[..100_000] == data && to.bytes.borrow()[100_000..] == [9; 352]);
        let done = copy(Work::Check).await.unwrap();
        assert_eq!((done.bytes, done.there), (100_000, 100_000));
    });
}

#[test]
fn files_are_compared_to_their_end_and_keep_what_is_right() {
    let dir = tempfile::tempdir().unwrap();
    let (path, data) = (dir.path().join("there"), noise(20_000));
    let from = || Source::Unit(Rc::new(Memory::new(data[..18_432].to_vec(), 512)));
    let work = |work| {
        let sink = open_output(&path, work)?;
        run(async { copy(from(), sink, &Plan { work, ..plan() }, |_| {}).await })
    };
    assert!(matches!(work(Work::Check), Err(CopyError::Io { .. })), "there is no file");
    std::fs::write(&path, &data[..9000]).unwrap();
    let shorter = work(Work::Check);
    assert!(matches!(shorter, Err(CopyError::Unequal { bytes: 9432, first: 9000, .. })), "{shorter:?}");
    assert_eq!(work(Work::Differing).unwrap().there, 8192);
    assert!(std::fs::read(&path).unwrap() == data[..18_432]);
    assert_eq!(work(Work::Check).unwrap().there, 18_432);
    std::fs::write(&path, &data).unwrap();
    let longer = work(Work::Check);
    assert!(
        matches!(longer, Err(CopyError::Unequal { bytes: 1568, of: 20_000, first: 18_432, .. })),
        "{longer:?}"
    );
    work(Work::Differing).unwrap();
    assert!(std::fs::read(&path).unwrap() == data[..18_432]);
}

#[test]
fn zeros_of_the_source_replace_what_a_file_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("there");
    std::fs::write(&path, noise(16_384)).unwrap();
    let from = Rc::new(Memory::new(vec![0; 16_384], 512));
    let sink = open_output(&path, Work::Differing).unwrap();
    let plan = Plan { work: Work::Differing, ..plan() };
    run(async { copy(Source::Unit(from), sink, &plan, |_| {}).await }).unwrap();
    assert!(std::fs::read(&path).unwrap() == vec![0; 16_384]);
}

#[test]
fn a_pace_spreads_bytes_over_time_for_all_that_share_it() {
    run(async {
        let pace = Rc::new(Pace::new(1 << 20));
        let began = std::time::Instant::now();
        for _ in 0..2 {
            let from = Rc::new(Memory::new(noise(65_536), 512));
            let to = Rc::new(Memory::new(vec![0; 65_536], 512));
            let plan = Plan { pace: Some(pace.clone()), ..plan() };
            copy(Source::Unit(from), Sink::Unit(to), &plan, |_| {}).await.unwrap();
        }
        // All but the last of 32 pieces have had their time.
        assert!(began.elapsed() >= std::time::Duration::from_millis(31 * 1000 / 256));
    });
}
