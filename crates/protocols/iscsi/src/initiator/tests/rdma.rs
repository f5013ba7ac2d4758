//! Sessions over RDMA (RFC 7145): the datamover's input, and PDUs that are invalid there.

use super::*;

/// The session's output to its datamover over RDMA, as traces.
#[derive(Default)]
struct Mover(Vec<String>);

impl crate::initiator::Datamover<Vec<u8>, Vec<u8>> for Mover {
    fn send_control(&mut self, header: &Bhs, _: &[u8], data: Option<Vec<u8>>) {
        assert_eq!(header.data_segment_len() as usize, data.map_or(0, |d| d.len()));
        self.0.push(header.to_string());
    }

    fn send_command(
        &mut self,
        header: &Bhs,
        ahs: &[u8],
        data: Option<Vec<u8>>,
        buffers: crate::initiator::Buffers<'_, Vec<u8>, Vec<u8>>,
    ) {
        assert_eq!(header.total_ahs_len(), ahs.len());
        self.0.push(format!(
            "command {:#x}: read {}, write {:?}, unsolicited {}, immediate {}",
            buffers.key.itt(),
            buffers.read_len,
            buffers.write.map(Vec::len),
            buffers.unsolicited,
            data.map_or(0, |d| d.len())
        ));
    }
}

fn moved(s: &mut Plain, on: ConnectionId) -> Vec<String> {
    let mut mover = Mover::default();
    s.transmit_messages(on, usize::MAX, &mut mover);
    mover.0
}

fn iser(target_segment: u32) -> Params {
    Params {
        rdma_extensions: true,
        initial_r2t: false,
        target_recv_data_segment_length: target_segment,
        // Irrelevant over iSER (RFC 7145 §6.2).
        peer_max_recv_data_segment_length: 512,
        ..Params::default()
    }
}

#[test]
fn over_rdma_a_command_has_buffers_and_its_response_the_read_length() {
    let (mut s, on) = session(iser(8192));
    let key = s.submit(read(3000), Vec::new()).unwrap();
    let itt = key.itt();
    assert_eq!(
        moved(&mut s, on),
        [format!("command {itt:#x}: read 3000, write None, unsolicited 0, immediate 0")]
    );
    let mut end = numbered!(pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, 0), 10);
    end.set_residual(Residual::Underflow(500));
    let Some(Event::Done(done, _, end)) = hear(&mut s, on, end, &[]).unwrap() else { panic!("not done") };
    assert_eq!((done, end.received, end.residual), (key, 2500, Residual::Underflow(500)));
}

#[test]
fn over_rdma_a_residual_longer_than_the_read_is_an_error() {
    let (mut s, on) = session(iser(8192));
    let itt = s.submit(read(3000), Vec::new()).unwrap().itt();
    moved(&mut s, on);
    let mut end = numbered!(pdu::ScsiResponse::new(itt, ResponseCode::CommandCompleted, 0), 10);
    end.set_residual(Residual::Underflow(3001));
    assert_eq!(hear(&mut s, on, end, &[]).unwrap_err(), ProtocolError::Field);
}

#[test]
fn over_rdma_neither_data_in_nor_r2t_has_a_place() {
    let (mut s, on) = session(iser(8192));
    let itt = s.submit(read(3000), Vec::new()).unwrap().itt();
    let out = s.submit(write(vec![1; 300_000]), Vec::new()).unwrap().itt();
    moved(&mut s, on);
    let data = numbered!(pdu::DataIn::new(itt, 0, 0), 0);
    assert_eq!(hear(&mut s, on, data, &[0; 100]).unwrap_err(), ProtocolError::Opcode(0x25));
    let r2t = numbered!(pdu::ReadyToTransfer::new(out, 7, Lun::ZERO, 0, 0, 1000), 10);
    assert_eq!(hear(&mut s, on, r2t, &[]).unwrap_err(), ProtocolError::Opcode(0x31));
}

#[test]
fn over_rdma_a_write_sends_unasked_what_the_limit_allows_and_no_more() {
    let (mut s, on) = session(iser(8192));
    let key = s.submit(write(vec![1; 20_000]), Vec::new()).unwrap().itt();
    let lines = moved(&mut s, on);
    assert_eq!(
        lines[0],
        format!("command {key:#x}: read 0, write Some(20000), unsolicited 20000, immediate 8192")
    );
    assert_eq!(lines.len(), 3, "two Data-Outs behind it: {lines:?}");
    assert!(lines[2].contains(" F") && lines[2].ends_with("dsl=3616"), "{lines:?}");

    let mut s = Session::new(SessionConfig { max_tasks: 64, first_cmd_sn: 100 });
    s.limit_unsolicited(8192);
    let on = s.connect(0, &established(iser(8192)));
    let short = s.submit(write(vec![1; 8192]), Vec::new()).unwrap().itt();
    let long = s.submit(write(vec![1; 8193]), Vec::new()).unwrap().itt();
    assert_eq!(
        moved(&mut s, on),
        [
            format!("command {short:#x}: read 0, write Some(8192), unsolicited 8192, immediate 8192"),
            format!("command {long:#x}: read 0, write Some(8193), unsolicited 0, immediate 0"),
        ]
    );
}
