"""An OSD's security, by the computations of docs/src/objects/security.md done again here: keys exchanged and derived, credentials signed,
commands proven by CAPKEY, CMDRSP and ALLDATA; what is forged, replayed, old, weaker or beyond its capability is refused."""

import hashlib
import hmac
import secrets
import struct
import time

from lab import osd
from lab.osd import CURRENT_COMMAND, P, R, U
from lab.osd_session import CHECK_CONDITION, GOOD, Request
from lab.report import expect
from peers.osd_data import Bench, new_object, new_partition, write

# RFC 3526 §3: the 2048-bit group, generator 2.
PRIME = int("FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74020BBEA63B139B22514A08798E3404DDEF9519B3CD3A431B302B0A6DF25F14374FE1"
            "356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7EDEE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF0598DA4836"
            "1C55D39A69163FA8FD24CF5F83655D23DCA3AD961C62F356208552BB9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3BE39E772C180E"
            "86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF6955817183995497CEA956AE515D2261898FA051015728E5A8AACAA68FFFFFFFFFFFFFFFF", 16)
CAPKEY, CMDRSP, ALLDATA = 1, 2, 3
SHA256 = 2


def mac(key, *parts):
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def derive(generation, seed):
    """The pair (authentication, generation) below a generation half."""
    return mac(generation, seed), mac(generation, seed[:-1] + bytes([seed[-1] ^ 1]))


class Manager:
    """Who shares keys with a device and signs capabilities."""

    def __init__(self, device):
        self.device = device
        self.system_id = device.good("GET ATTRIBUTES", partition=0, object=0, get=[(R + 1, 3)]).attributes[R + 1, 3]
        status, _, token = device.session.run(bytes([0x12, 1, 0xB1, 1, 0, 0]), 256)
        expect(status == GOOD, "no security token")
        self.token = token[4:4 + int.from_bytes(token[2:4], "big")]

    def nonce(self, age=0):
        return (int(time.time() * 1000) - age).to_bytes(6, "big") + secrets.token_bytes(6)

    def run(self, action, key, partition=0, object_=0, method=CMDRSP, permissions=osd.EVERYTHING, nonce=None, spoil=False, type_=None,
            seal=None, capability=None, **what):
        """One command with a capability signed by `key` and proven by `method`."""
        generic = osd.decode_capability(osd.capability_for(partition, object_, 2, type_, permissions, method=method, algorithm=SHA256))
        capability = {**{name: value for name, value in generic.items() if value}, **(capability or {})}
        nonce = nonce or self.nonce()
        fields = {"partition": partition} if "partition" in osd.ACTIONS[action][2] else {}
        fields |= {"object": object_} if "object" in osd.ACTIONS[action][2] else {}
        request = Request(action, capability=capability, security={"nonce": nonce.hex()}, **fields, **what)
        raw = request.cdb[80:184]
        proof = mac(key, raw, self.system_id)
        if method == ALLDATA and request.out:
            at = len(request.out) + -len(request.out) % 8
            counts = struct.pack(">QQQ", *seal)
            out = request.out + bytes(at - len(request.out))
            request.out = out + counts + mac(proof, nonce, b"O", out, counts)
            request.view["security"]["data_out_offset"] = at
        if method == ALLDATA and request.in_length:
            at = request.in_length + -request.in_length % 8
            request.view["security"]["data_in_offset"] = at
            request.in_length = at + 48
        request.cdb = osd.encode(request.view)
        request.cdb = osd.with_icv(request.cdb, proof, self.token if method == CAPKEY else None)
        if spoil:
            request.cdb = request.cdb[:190] + bytes([request.cdb[190] ^ 1]) + request.cdb[191:]
        answer = self.device.send(request)
        answer.proof, answer.nonce, answer.raw_request = proof, nonce, request
        return answer

    def good(self, action, key, **what):
        answer = self.run(action, key, **what)
        expect(answer.status == GOOD, f"{action} proven by method {what.get('method', CMDRSP)}: {answer}")
        return answer

    def refused(self, why, code, field, action, key, **what):
        answer = self.run(action, key, **what)
        expect(answer.status == CHECK_CONDITION and answer.code == (5, code), f"{why}: {answer}; expected 5/{code:04x}")
        if field is not None:
            expect(answer.sense.get("field") == field, f"{why}: field {answer.sense.get('field')}, not {field}")
        return answer

    def master_key(self):
        """SET MASTER KEY in its two steps; the pair."""
        exponent = secrets.randbits(256) | 1 << 255
        ours = struct.pack(">I", 256) + pow(2, exponent, PRIME).to_bytes(256, "big")
        key_id = b"master!"
        what = {"dh_group": 14, "key_id": key_id.hex(), "capability": {"format": 2, "algorithm": SHA256, "object_type": osd.ROOT, "descriptor": 2,
                                                                      "permissions": osd.EVERYTHING}}
        answer = self.device.good("SET MASTER KEY", dh_step=0, parameters=len(ours), dh_allocation=260, data=ours, data_in=260, **what)
        expect(answer.data[:4] == struct.pack(">I", 256), f"the device's value begins with {answer.data[:4].hex()}")
        shared = pow(int.from_bytes(answer.data[4:260], "big"), exponent, PRIME).to_bytes(256, "big")
        pair = derive(b"OSD initial master key", shared)
        proof = mac(pair[0], b"OSD change master key", key_id)
        wrong = self.device.run("SET MASTER KEY", dh_step=1, parameters=32, data=bytes(32), **what)
        expect(wrong.status == CHECK_CONDITION, f"a master key that nobody has proven: {wrong}")
        answer = self.device.good("SET MASTER KEY", dh_step=0, parameters=len(ours), dh_allocation=260, data=ours, data_in=260, **what)
        shared = pow(int.from_bytes(answer.data[4:260], "big"), exponent, PRIME).to_bytes(256, "big")
        pair = derive(b"OSD initial master key", shared)
        proof = mac(pair[0], b"OSD change master key", key_id)
        self.device.good("SET MASTER KEY", dh_step=1, parameters=32, data=proof, **what)
        return pair

    def set_key(self, which, signer, parent, partition=0, version=0):
        """SET KEY, permitted by `signer`'s authentication half; the new pair, derived from `parent`."""
        seed = secrets.token_bytes(20)
        self.good("SET KEY", signer[0], partition=partition, key_to_set=which, key_version=version, key_id=b"the key".hex(), seed=seed.hex())
        return derive(parent[1], seed)


def whole(lab):
    """From an open device to one that takes proven commands alone."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        write(device, partition, object_, b"sixteen bytes ok")
        manager = Manager(device)
        master = manager.master_key()
        root = manager.set_key(1, master, master)
        key = manager.set_key(2, root, root, partition)
        working = manager.set_key(3, key, key, partition)[0]
        this = {"partition": partition, "object_": object_}
        read = {"length": 16, "data_in": 16}
        # Not demanded yet, and honoured.
        answer = manager.good("READ", working, **this, **read)
        expect(answer.data == b"sixteen bytes ok", "a proven READ")
        manager.refused("a proof by another key", 0x2400, 184, "READ", bytes(32), **this, **read)
        device.good("SET ATTRIBUTES", partition=partition, object=0, set_=[(P + 5, 1, bytes([CMDRSP]))])
        # Demanded now.
        device.fails("READ", 5, 0x2400, 82, partition=partition, object=object_, **read)
        manager.refused("a method weaker than what is demanded", 0x2400, 82, "READ", working, method=CAPKEY, **this, **read)
        answer = manager.good("READ", working, **this, **read, get=[(CURRENT_COMMAND, 1), (U + 1, 0x82)])
        value = answer.attributes[CURRENT_COMMAND, 1]
        expect(value[:32] == mac(answer.proof, answer.nonce, b"\0"), f"the response's integrity check value: {value.hex()}")
        again = device.send(answer.raw_request)
        expect(again.code == (5, 0x2406), f"a command sent again: {again}")
        manager.refused("a spoilt value", 0x2400, 184, "READ", working, spoil=True, **this, **read)
        manager.refused("a nonce of an hour ago", 0x2407, None, "READ", working, nonce=manager.nonce(3_600_000), **this, **read)
        manager.refused("a nonce of the next hour", 0x2407, None, "READ", working, nonce=manager.nonce(-3_600_000), **this, **read)
        manager.refused("a capability that ended", 0x2400, 84, "READ", working, capability={"expiration": int(time.time() * 1000) - 5000}, **this, **read)
        manager.refused("READ without its permission", 0x2400, 129, "READ", working, permissions=osd.WRITE, **this, **read)
        manager.refused("WRITE with a capability to read", 0x2400, 129, "WRITE", working, permissions=osd.READ, data=b"x", length=1, **this)
        manager.refused("another object's capability", 0x2400, None, "READ", working, capability={"object": object_ + 1}, **this, **read)
        manager.refused("an object made at another time", 0x2400, 122, "READ", working, capability={"created": 12345}, **this, **read)
        # The sense carries the device's own proof.
        answer = manager.refused("an object that is not there", 0x2400, 24, "READ", working, partition=partition, object_=object_ + 99, **read)
        sense = answer.raw_sense
        at = sense.find(b"\x07\x20")
        expect(at > 0, f"no response integrity check value in {sense.hex()}")
        zeroed = sense[:at + 2] + bytes(32) + sense[at + 34:]
        expect(sense[at + 2:at + 34] == mac(answer.proof, answer.nonce, b"\2", zeroed), "the value over the sense")
        sealed(device, manager, working, this)
        # The policy tag, the key frozen, and the key set anew revoke.
        tagged = {"capability": {"policy_tag": 7}}
        manager.refused("a tag that the object has not", 0x2400, None, "READ", working, **tagged, **this, **read)
        manager.good("SET ATTRIBUTES", working, **this, set_=[(U + 5, 0x40000001, struct.pack(">I", 7))])
        manager.good("READ", working, **tagged, **this, **read)
        manager.set_key(3, key, key, partition)
        manager.refused("the working key of before", 0x2400, 184, "READ", working, **this, **read)


def sealed(device, manager, working, this):
    """ALLDATA both ways: what is altered is refused, and nothing of it is used."""
    answer = manager.good("WRITE", working, method=ALLDATA, data=b"sealed, all of it", length=17, seal=(17, 0, 0), **this)
    answer = manager.good("READ", working, method=ALLDATA, length=17, data_in=17, **this)
    at = 24
    information = answer.everything[at:at + 48]
    expect(answer.everything[:17] == b"sealed, all of it", f"READ: {answer.everything[:24]}")
    expect(information[:16] == struct.pack(">QQ", 17, 0), f"the counts of Data-In: {information[:16].hex()}")
    expect(information[16:] == mac(answer.proof, answer.nonce, b"I", answer.everything[:at], information[:16]), "the value over Data-In")
    forged = manager.run("WRITE", working, method=ALLDATA, data=b"forged, all of it", length=17, seal=(16, 0, 0), **this)
    expect(forged.code == (5, 0x260F), f"counts that are not those: {forged}")
    answer = manager.good("READ", working, method=ALLDATA, length=17, data_in=17, **this)
    expect(answer.everything[:17] == b"sealed, all of it", "a refused WRITE has written")


def by_tokens(lab):
    """CAPKEY: a proof of one session is none in another."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        write(device, partition, object_, b"sixteen bytes ok")
        manager = Manager(device)
        master = manager.master_key()
        root = manager.set_key(1, master, master)
        key = manager.set_key(2, root, root, partition)
        working = manager.set_key(3, key, key, partition)[0]
        device.good("SET ATTRIBUTES", partition=partition, object=0, set_=[(P + 5, 1, bytes([CAPKEY]))])
        what = {"partition": partition, "object_": object_, "length": 16, "data_in": 16, "method": CAPKEY}
        expect(manager.good("READ", working, **what).data == b"sixteen bytes ok", "READ by CAPKEY")
        manager.token = bytes(len(manager.token))
        manager.refused("another session's token", 0x2400, 184, "READ", working, **what)


def listed(lab):
    """The Attributes Access page: a capability that names one of its lists is for the attributes there alone, in every way to reach them."""
    with Bench(lab) as device:
        partition = new_partition(device)
        object_ = new_object(device, partition)
        write(device, partition, object_, b"sixteen bytes ok")
        ours, theirs = (0x10000, 1), (0x10000, 2)
        whole = [(0x10001, 1), (0x10001, 2)]
        manager = Manager(device)
        master = manager.master_key()
        root = manager.set_key(1, master, master)
        key = manager.set_key(2, root, root, partition)
        working = manager.set_key(3, key, key, partition)[0]
        device.good("SET ATTRIBUTES", partition=partition, object=object_, set_=[(*one, b"before") for one in (ours, theirs, *whole)])
        device.good("SET ATTRIBUTES", partition=partition, object=0, set_=[(P + 5, 1, bytes([CMDRSP]))])
        # Who sets the lists decides about security.
        pairs = struct.pack(">IIII", *ours, 0x10001, 0xFFFFFFFF)
        this, about = {"partition": partition, "object_": object_}, {"partition": partition, "type_": osd.PARTITION}
        without = osd.EVERYTHING & ~osd.POL_SEC
        manager.refused("a list set without POL_SEC", 0x2400, 129, "SET ATTRIBUTES", working, permissions=without, set_=[(P + 4, 7, pairs)], **about)
        answer = manager.run("SET ATTRIBUTES", working, set_=[(P + 4, 7, pairs[:9])], **about)
        expect(answer.code == (5, 0x2600), f"a list that is not of pairs: {answer}")
        manager.good("SET ATTRIBUTES", working, set_=[(P + 4, 7, pairs)], **about)
        answer = manager.good("GET ATTRIBUTES", working, get=[(P + 4, 7), (P + 4, 0)], **about)
        expect(answer.attributes[P + 4, 7] == pairs and b"T10" in answer.attributes[P + 4, 0], f"the page: {answer.attributes}")
        seventh = {"capability": {"attributes_access": 7}, **this}
        answer = manager.good("GET ATTRIBUTES", working, get=[ours, *whole, (0x10001, 0xFFFFFFFF), (CURRENT_COMMAND, 2)], **seventh)
        expect(answer.attributes[ours] == answer.attributes[whole[1]] == b"before", f"what is listed: {answer.attributes}")
        manager.good("READ", working, length=4, data_in=4, set_=[(*ours, b"after")], **seventh)
        read = {"length": 4, "data_in": 4}
        for why, action, what in (
                ("got", "GET ATTRIBUTES", {"get": [ours, theirs]}), ("all of its page got", "GET ATTRIBUTES", {"get": [(0x10000, 0xFFFFFFFF)]}),
                ("all pages got", "GET ATTRIBUTES", {"get": [(0xFFFFFFFF, 0xFFFFFFFF)]}), ("set", "SET ATTRIBUTES", {"set_": [(*theirs, b"after")]}),
                ("set by a READ", "READ", {**read, "set_": [(*theirs, b"after")]}), ("got by a READ", "READ", {**read, "get": [theirs]}),
                ("set in the CDB", "SET ATTRIBUTES", {"in_cdb": (*theirs, b"after")}), ("a page got", "READ", {**read, "get_page": (U + 3, 64)}),
                ("the length set", "SET ATTRIBUTES", {"set_": [(U + 1, 0x82, bytes(8))]})):
            manager.refused(f"an attribute that is not listed, {why}", 0x2400, 136, action, working, **what, **seventh)
        manager.refused("a list that there is not", 0x2400, 136, "GET ATTRIBUTES", working, get=[ours], capability={"attributes_access": 8}, **this)
        answer = manager.good("GET ATTRIBUTES", working, get=[ours, theirs], **this)
        expect([answer.attributes[one] for one in (ours, theirs)] == [b"after", b"before"], f"what was refused was set: {answer.attributes}")
        # The list is asked for anew each time.
        manager.good("SET ATTRIBUTES", working, set_=[(P + 4, 7, b"")], **about)
        manager.refused("a list that is gone", 0x2400, 136, "GET ATTRIBUTES", working, get=[ours], **seventh)


CASES = [
    ("security: keys exchanged and derived, CMDRSP and ALLDATA, forgeries, replays, revocation", whole),
    ("security: CAPKEY", by_tokens),
    ("security: the lists of the Attributes Access page", listed),
]
