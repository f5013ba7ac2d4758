//! READ, WRITE, APPEND, CREATE AND WRITE, CLEAR, PUNCH, FLUSH, and their data in buffers with
//! attributes.

use osd::attributes::numbers::{current_command, user_information as info};
use osd::cdb::FlushScope;
use osd::sense::function;

use super::*;

#[test]
fn what_is_written_is_read_in_every_form_of_cdb() {
    for it in Client::each_form() {
        it.write(10, b"hello").good();
        assert_eq!(it.length(), 15);
        let ran = it.read(0, 15).good();
        assert_eq!(ran.data, b"\0\0\0\0\0\0\0\0\0\0hello");
        assert_eq!((ran.outcome.wanted_in, ran.outcome.wanted_out), (15, 0));
        let ran = it.write(12, b"LL").good();
        assert_eq!((ran.outcome.wanted_in, ran.outcome.wanted_out), (0, 2));
        assert_eq!(it.read(10, 5).good().data, b"heLLo");
        assert_eq!(it.ask(Osd::Write(ID, range(0, 1))).data(b"x").fua().send().good().data, b"");
    }
}

#[test]
fn a_read_past_the_end_is_recovered_and_says_how_much_there_was() {
    for it in Client::each_form() {
        it.write(0, &[7; 100]).good();
        let ran = it.read(90, 30);
        let sense = ran.fails(SenseKey::RecoveredError, (0x3B, 0x17));
        assert_eq!(sense.command_specific, Some(10));
        assert_eq!(ran.data, [7; 10]);
        assert_eq!(ran.outcome.wanted_in, 10);
        assert_eq!(ran.functions().2, ID);
        let ran = it.read(100, 1);
        assert_eq!(ran.fails(SenseKey::RecoveredError, (0x3B, 0x17)).command_specific, Some(0));
        // A READ that begins behind the end is no short read.
        let start = if it.form == Form::Osd1 { 44 } else { 40 };
        it.read(101, 1).bad_field(start);
        it.read(101, 0).good();
    }
}

#[test]
fn a_short_read_still_sets_and_gets_attributes_at_their_offset() {
    for it in Client::each_form() {
        it.write(0, b"abc").good();
        let ran = it.ask(Osd::Read(ID, range(0, 100))).set(FREE, b"new").get(&[FREE]).send();
        ran.fails(SenseKey::RecoveredError, (0x3B, 0x17));
        assert_eq!(ran.value(), b"new");
        let gap = if it.form == Form::Osd1 { 256 } else { 104 };
        assert_eq!(ran.retrieved, gap);
        assert_eq!(&ran.data[..3], b"abc");
        assert!(ran.data[3..gap].iter().all(|byte| *byte == 0));
        assert_eq!(ran.outcome.wanted_in, ran.data.len() as u64);
        let all = function::VALIDATION
            | function::COMMAND_CAPABILITY
            | function::COMMAND
            | function::SET_CAPABILITY
            | function::SET_ATTRIBUTES
            | function::GET_CAPABILITY
            | function::GET_ATTRIBUTES;
        assert_eq!(ran.functions(), (0, all, ID));
    }
}

#[test]
fn data_of_many_pieces_comes_back_however_slowly_it_moves() {
    let it = Client::ready();
    let data: Vec<u8> = (0..3_500_001u32).map(|n| ((n * 7) >> 3) as u8).collect();
    it.ask(Osd::Write(ID, range(77, data.len() as u64))).data(&data).send_slowly().good();
    let ran = it.ask(Osd::Read(ID, range(77, data.len() as u64))).send_slowly().good();
    assert!(ran.data == data);
    // With attributes behind both.
    let ran = it
        .ask(Osd::Write(ID, range(0, data.len() as u64)))
        .data(&data)
        .set(FREE, b"v")
        .get(&[FREE, info::LOGICAL_LENGTH])
        .fua()
        .send_slowly()
        .good();
    assert_eq!(ran.values()[0].1, b"v");
    assert_eq!(ran.values()[1].1, 3_500_078u64.to_be_bytes());
}

#[test]
fn what_there_is_no_room_for_counts_and_is_not_put() {
    let it = Client::ready();
    it.write(0, &[1; 5000]).good();
    let ran = it.ask(Osd::Read(ID, range(0, 5000))).room(100).send().good();
    assert_eq!((ran.data.len(), ran.outcome.wanted_in), (100, 5000));
    let ran = it.ask(Osd::Read(ID, range(0, 5000))).get(&[info::LOGICAL_LENGTH]).room(5000).send().good();
    assert_eq!(ran.data.len(), 5000);
    assert!(ran.outcome.wanted_in >= 5000);
}

#[test]
fn appends_say_where_they_went() {
    for it in Client::each_form() {
        for (n, data) in [&b"one"[..], b"three", b""].into_iter().enumerate() {
            let ran = it
                .ask(Osd::Append { id: ID, len: data.len() as u64 })
                .data(data)
                .get(&[current_command::APPEND_ADDRESS])
                .send()
                .good();
            assert_eq!(ran.number(), [0, 3, 8][n]);
        }
        assert_eq!(it.read(0, 8).good().data, b"onethree");
    }
    let it = Client::ready();
    let data = vec![9; 2_100_000];
    let append = || it.ask(Osd::Append { id: ID, len: data.len() as u64 }).data(&data);
    append().fua().send().good();
    let ran = append().get(&[current_command::APPEND_ADDRESS, current_command::USED_CAPACITY_CHANGE]).send();
    assert_eq!(ran.good().values()[0].1, 2_100_000u64.to_be_bytes());
    assert_eq!(it.length(), 4_200_000);
}

#[test]
fn scatter_and_gather_move_segments_one_behind_the_other() {
    let it = Client::ready();
    it.write(0, &[b'.'; 32]).good();
    let list = || Descriptor::ScatterGather(vec![range(4, 3), range(20, 2), range(0, 1)]);
    it.ask(Osd::Write(ID, range(0, 6))).descriptor(list()).data(b"abcdeX").send().good();
    assert_eq!(it.read(0, 32).good().data, b"X...abc.............de..........");
    let ran =
        it.ask(Osd::Read(ID, range(0, 6))).descriptor(list()).get(&[info::LOGICAL_LENGTH]).send().good();
    assert_eq!(&ran.data[..6], b"abcdeX");
    assert_eq!(ran.value(), 32u64.to_be_bytes());
    // Offsets count from the starting byte.
    it.ask(Osd::Write(ID, range(8, 6))).descriptor(list()).data(b"ABCDEY").send().good();
    assert_eq!(it.read(8, 24).good().data, b"Y...ABC.....de......DE..");
    let wrong = it.ask(Osd::Write(ID, range(0, 7))).descriptor(list()).data(b"abcdefg").send();
    wrong.bad_field(32);
    // A segment that ends past the end ends the read.
    let ran = it
        .ask(Osd::Read(ID, range(0, 12)))
        .descriptor(Descriptor::ScatterGather(vec![range(0, 2), range(30, 8), range(2, 2)]))
        .send();
    assert_eq!(ran.fails(SenseKey::RecoveredError, (0x3B, 0x17)).command_specific, Some(4));
    let twice = it.ask(Osd::Read(ID, range(0, 6))).descriptor(list()).descriptor(list()).send();
    twice.bad_parameter(0);
}

#[test]
fn a_gather_list_of_many_pieces_crosses_chunks() {
    let it = Client::ready();
    let data: Vec<u8> = (0..1_500_000u32).map(|n| (n >> 5) as u8).collect();
    let ranges: Vec<_> = (0..15).map(|n| range((14 - n) * 100_000, 100_000)).collect();
    let list = || Descriptor::ScatterGather(ranges.clone());
    it.ask(Osd::CreateAndWrite { partition: P, requested: O + 1, range: range(0, 1_500_000) })
        .descriptor(list())
        .data(&data)
        .send()
        .good();
    let id = Id::new(P, O + 1);
    let ran = it.ask(Osd::Read(id, range(0, 1_500_000))).descriptor(list()).send().good();
    assert!(ran.data == data);
    let ran = it.ask(Osd::Read(id, range(1_400_000, 100_000))).send().good();
    assert!(ran.data == data[..100_000]);
}

#[test]
fn a_continuation_must_be_one_for_this_command() {
    let it = Client::ready();
    let list = Descriptor::ScatterGather(vec![range(0, 1)]);
    let (mut cdb, mut out, _) =
        it.ask(Osd::Write(ID, range(0, 1))).descriptor(list.clone()).data(b"x").build();
    out[2] ^= 1;
    it.raw(&cdb, &out).bad_parameter(2);
    out[2] ^= 1;
    out[0] = 9;
    it.raw(&cdb, &out).bad_parameter(0);
    cdb[48..52].copy_from_slice(&40u32.to_be_bytes());
    it.raw(&cdb, &out).bad_field(48);
    cdb[48..52].copy_from_slice(&u32::MAX.to_be_bytes());
    it.raw(&cdb, &out).bad_field(48);
    // A list of ranges makes no sense where nothing is read or written.
    it.ask(Osd::Remove(ID)).descriptor(list).send().bad_parameter(40);
}

#[test]
fn clear_makes_zeros_and_may_extend() {
    let it = Client::ready();
    it.write(0, &[5; 20_000]).good();
    it.ask(Osd::Clear(ID, range(100, 10_000))).fua().send().good();
    let data = it.read(0, 20_000).good().data;
    assert!(data[..100].iter().all(|b| *b == 5) && data[10_100..].iter().all(|b| *b == 5));
    assert!(data[100..10_100].iter().all(|b| *b == 0));
    it.ask(Osd::Clear(ID, range(30_000, 10))).send().good();
    assert_eq!(it.length(), 30_010);
    it.ask(Osd::Clear(ID, range(50_000, 0))).send().good();
    assert_eq!(it.length(), 30_010);
    it.ask(Osd::Clear(ID, range(u64::MAX, 2))).send().bad_field(32);
}

#[test]
fn punch_shifts_the_tail_down() {
    let it = Client::ready();
    it.write(0, b"0123456789").good();
    it.ask(Osd::Punch(ID, range(2, 3))).send().good();
    assert_eq!(it.read(0, 7).good().data, b"0156789");
    // The range may reach beyond the end, but not begin beyond it.
    it.ask(Osd::Punch(ID, range(5, 100))).send().good();
    assert_eq!(it.length(), 5);
    it.ask(Osd::Punch(ID, range(5, 1))).send().good();
    it.ask(Osd::Punch(ID, range(6, 1))).send().bad_field(40);
    assert_eq!(it.read(0, 5).good().data, b"01567");
}

#[test]
fn flushes_of_every_scope_are_well_and_of_what_is_not_there_are_not() {
    for it in Client::each_form() {
        let scopes = [FlushScope::Contents, FlushScope::Attributes, FlushScope::RangeOrAll];
        for scope in scopes {
            it.ask(Osd::Flush { id: ID, scope, range: range(0, 0) }).send().good();
            it.ask(Osd::FlushPartition { partition: P, scope }).send().good();
            it.ask(Osd::FlushOsd { scope }).send().good();
            it.ask(Osd::FlushCollection { id: ID, scope }).send().bad_field(24);
            it.ask(Osd::Flush { id: Id::new(P, O + 7), scope, range: range(0, 0) }).send().bad_field(24);
            it.ask(Osd::FlushPartition { partition: P + 1, scope }).send().bad_field(16);
        }
        let flush = Osd::Flush { id: ID, scope: FlushScope::Contents, range: range(0, 0) };
        assert_eq!(it.ask(flush).set(FREE, b"x").get(&[FREE]).send().good().value(), b"x");
    }
}

#[test]
fn a_write_whose_data_does_not_come_writes_nothing() {
    let it = Client::ready();
    let (cdb, _, _) = it.ask(Osd::Write(ID, range(0, 10))).data(&[1; 10]).build();
    it.raw(&cdb, &[1; 9]).bad_field(32);
    assert_eq!(it.length(), 0);
    // A lost connection says nothing, and leaves nothing of a creation.
    let create = Osd::CreateAndWrite { partition: P, requested: O + 1, range: range(0, 4) };
    let (cdb, out, _) = it.ask(create).data(b"data").build();
    let mover = TestMover::aborted_after(0, &out);
    let (_, outcome) = Client::end(it.execute(&cdb, 4, 0, mover));
    assert_eq!(outcome, Outcome::GOOD);
    it.ask(Osd::GetAttributes(Id::new(P, O + 1))).send().bad_field(24);
}

#[test]
fn a_long_write_puts_nothing_into_an_object_that_got_its_id_meanwhile() {
    let len = 2_000_000;
    for command in [Osd::Write(ID, range(0, len)), Osd::Append { id: ID, len }] {
        let it = Client::ready();
        let mut writing = it.ask(command).data(&vec![1; 2_000_000]).set(FREE, b"old").begin(0, 1, 1);
        assert!(poll(&mut writing).is_pending());
        assert!(it.length() > 0, "the first piece is there");
        it.tick(1);
        it.ask(Osd::Remove(ID)).send().good();
        it.create(O).good();
        assert_eq!(block_on(writing).1.status, Status::CheckCondition);
        assert_eq!(it.length(), 0);
        assert!(it.get(ID, FREE).good().value().is_empty());
    }
}

#[test]
fn a_read_that_waits_puts_nothing_of_an_object_that_got_the_id_meanwhile() {
    let it = Client::ready();
    it.write(0, &vec![7; 3 << 20]).good();
    let (cdb, out, _) = it.ask(Osd::Read(ID, range(0, 3 << 20))).build();
    let ran = it.raw_stalled(&cdb, &out, || {
        it.tick(1);
        it.ask(Osd::Remove(ID)).send().good();
        it.create(O).good();
        it.write(0, &vec![8; 3 << 20]).good();
    });
    ran.bad_field(24);
    assert!(!ran.data.is_empty() && ran.data.iter().all(|byte| *byte == 7));
}

#[test]
fn an_aborted_punch_of_a_long_object_leaves_it_as_it_was() {
    let rig = crate::store::embedded::testing::Rig::new(4000, 1 << 20);
    let clock = Arc::new(TestClock(AtomicU64::new(1_000_000)));
    let unit = OsdUnit::new(Arc::new(rig.open()), options(&clock)).unwrap();
    let it = Client::to(&unit, 1, clock);
    it.make();
    it.write(0, &vec![7; 2_000_000]).good();
    let (cdb, out, _) = it.ask(Osd::Punch(ID, range(100, 50))).build();
    // It is aborted while data moves.
    let (_, outcome) = Client::end(it.execute(&cdb, 0, 0, TestMover::aborted_after(0, &out)));
    assert_eq!(outcome, Outcome::GOOD);
    assert_eq!(it.length(), 2_000_000);
    it.ask(Osd::Punch(ID, range(100, 50))).send().good();
    assert_eq!(it.length(), 2_000_000 - 50);
}

#[test]
fn create_and_write_is_undone_when_an_attribute_cannot_be_set_or_got() {
    for it in Client::each_form() {
        for len in [10, 1_500_000] {
            let data = vec![3; len];
            let create = || {
                let range = range(0, len as u64);
                it.ask(Osd::CreateAndWrite { partition: P, requested: O + 1, range }).data(&data)
            };
            let ran = create().set(info::ID, &[0; 8]).send();
            ran.fails(SenseKey::IllegalRequest, (0x26, 0x00));
            let (_, completed, id) = ran.functions();
            assert_eq!(id, Id::new(P, O + 1));
            assert_eq!(completed & (function::COMMAND | function::SET_ATTRIBUTES), 0);
            it.ask(Osd::GetAttributes(id)).send().bad_field(24);
            let ran = create().set(FREE, b"f").get(&[FREE, current_command::OBJECT_ID]).send().good();
            assert_eq!(ran.values()[0].1, b"f");
            assert_eq!(ran.values()[1].1, (O + 1).to_be_bytes());
            assert!(it.ask(Osd::Read(id, range(0, len as u64))).send().good().data == data);
            create().send().bad_field(24);
            it.ask(Osd::Remove(id)).send().good();
        }
    }
}

#[test]
fn a_read_of_many_segments_waits_for_the_connection_before_each_but_the_first() {
    let it = Client::ready();
    it.write(0, b"0123456789").good();
    let list = Descriptor::ScatterGather(vec![range(0, 4), range(2, 6), range(0, 4)]);
    let mut reading = it.ask(Osd::Read(ID, range(0, 14))).descriptor(list).begin(64, 1, 2);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(pin!(&mut reading).poll(&mut cx).is_pending(), "it put what there was no room for");
    let (mover, outcome) = block_on(reading);
    assert_eq!((outcome.status, mover.pending), (Status::Good, 0));
    assert_eq!(mover.data_in, b"01232345670123");
}

#[test]
fn a_read_of_segments_ends_where_the_object_ends_that_became_shorter_meanwhile() {
    let it = Client::ready();
    it.write(0, b"0123456789").good();
    let list = Descriptor::ScatterGather(vec![range(0, 4), range(2, 6), range(0, 4)]);
    let mut reading = it.ask(Osd::Read(ID, range(0, 14))).descriptor(list).begin(64, 1, 2);
    assert!(poll(&mut reading).is_pending());
    it.set(ID, osd::attributes::numbers::user_information::LOGICAL_LENGTH, &4u64.to_be_bytes()).good();
    let (mover, outcome) = block_on(reading);
    let past_end = outcome.sense.unwrap();
    assert_eq!((past_end.key, past_end.command_specific), (SenseKey::RecoveredError, Some(6)));
    assert_eq!(mover.data_in, b"012323", "what is behind the end has no place");
}
