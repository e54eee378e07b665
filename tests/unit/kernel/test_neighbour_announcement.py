"""The frames that announce an address, octet by octet."""

from ipaddress import ip_address

from podwire.kernel.neighbour_announcement import announcement

MAC = bytes.fromhex("020000000001")


def test_gratuitous_arp_request() -> None:
    assert announcement(MAC, ip_address("192.0.2.7")).hex() == (
        "ffffffffffff0200000000010806" + "0001080006040001" + "020000000001c0000207" + "000000000000c0000207"
    )


def test_unsolicited_neighbour_advertisement() -> None:
    frame = announcement(MAC, ip_address("2001:db8::7"))
    assert frame[:14].hex() == "33330000000102000000000186dd"
    assert frame[14:22].hex() == "6000000000203aff"
    address = ip_address("2001:db8::7").packed
    assert frame[22:38] == address and frame[54:56].hex() == "8800" and frame[58:62].hex() == "20000000"
    assert frame[62:78] == address and frame[78:].hex() == "0201020000000001"
    pseudo = frame[22:54] + bytes.fromhex("000000200000003a") + frame[54:]
    arguments = sum(int.from_bytes(pseudo[at : at + 2], "big") for at in range(0, len(pseudo), 2))
    assert (arguments & 0xFFFF) + (arguments >> 16) in (0xFFFF, 0x1FFFE)
