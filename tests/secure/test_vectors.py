"""The cryptography that runs use, against the RFCs' own examples and a selection of Project Wycheproof's cases."""

import json
from pathlib import Path

import pytest

from fedsub.errors import WireError
from fedsub.secure.ciphers import ZEROS, Modern, same

pytest.importorskip("cryptography")
CASES = json.loads((Path(__file__).parent / "wycheproof.json").read_text())
CIPHERS = Modern()


def x25519(private: bytes, public: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return CIPHERS.agree(X25519PrivateKey.from_private_bytes(private), public)


def stream(key: bytes, nonce: bytes, block: int, size: int) -> bytes:
    out = bytearray(size)
    CIPHERS.stream(key, nonce, block)(memoryview(out))
    return bytes(out)


def xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("scalar", "u", "out"),
    [  # RFC 7748 §5.2
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_rfc_7748(scalar, u, out):
    assert x25519(bytes.fromhex(scalar), bytes.fromhex(u)).hex() == out


def test_rfc_7748_iterated():
    k = u = bytes([9]) + bytes(31)
    seen = []
    for _ in range(1000):
        k, u = x25519(k, u), k
        seen.append(k.hex())
    assert seen[0] == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert seen[-1] == "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51"


@pytest.mark.parametrize(
    ("ikm", "salt", "info", "length", "okm"),
    [  # RFC 5869 A.1, A.2, A.3
        (
            "0b" * 22, "000102030405060708090a0b0c", "f0f1f2f3f4f5f6f7f8f9", 42,
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            bytes(range(0x00, 0x50)).hex(), bytes(range(0x60, 0xB0)).hex(), bytes(range(0xB0, 0x100)).hex(), 82,
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c59045a99cac7827271cb41c65e590e09da3275600c2f"
            "09b8367793a9aca3db71cc30c58179ec3e87c14c01d5c1f3434f1d87",
        ),
        (
            "0b" * 22, "", "", 42,
            "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8",
        ),
    ],
)  # fmt: skip
def test_rfc_5869(ikm, salt, info, length, okm):
    made = CIPHERS.derive(bytes.fromhex(ikm), bytes.fromhex(salt), bytes.fromhex(info), length)
    assert made.hex() == okm


SUNSCREEN = (
    b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, sunscreen would "
    b"be it."
)


@pytest.mark.parametrize(
    ("key", "nonce", "block", "text", "out"),
    [
        (  # RFC 8439 A.1 #1
            bytes(32), bytes(12), 0, bytes(64),
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
            "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
        ),
        (  # RFC 8439 §2.4.2
            bytes(range(32)), bytes.fromhex("000000000000004a00000000"), 1, SUNSCREEN,
            "6e2e359a2568f98041ba0728dd0d6981e97e7aec1d4360c20a27afccfd9fae0bf91b65c5524733ab8f593dabcd62b357"
            "1639d624e65152ab8f530c359f0861d807ca0dbf500d6a6156a38e088a22b65e52bc514d16ccf806818ce91ab7793736"
            "5af90bbf74a35be6b40b8eedf2785e42874d",
        ),
        (  # RFC 8439 A.2 #3
            bytes.fromhex("1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0"),
            bytes.fromhex("000000000000000000000002"), 42,
            b"'Twas brillig, and the slithy toves\nDid gyre and gimble in the wabe:\nAll mimsy were the borogoves,\n"
            b"And the mome raths outgrabe.",
            "62e6347f95ed87a45ffae7426f27a1df5fb69110044c0d73118effa95b01e5cf166d3df2d721caf9b21e5fb14c616871"
            "fd84c54f9d65b283196c7fe4f60553ebf39c6402c42234e32a356b3e764312a61a5532055716ead6962568f87d3f3f77"
            "04c6a8d1bcd1bf4d50d6154b6da731b187b58dfd728afa36757a797ac188d1",
        ),
    ],
)  # fmt: skip
def test_rfc_8439_streams(key, nonce, block, text, out):
    assert xor(stream(key, nonce, block, len(text)), text).hex() == out


def test_a_stream_goes_on_where_it_was():
    """Pieces of odd lengths are the same bytes as one piece: masks are expanded piece by piece."""
    whole, fill, parts = stream(bytes(32), bytes(12), 0, 1000), CIPHERS.stream(bytes(32)), b""
    for size in (1, 63, 64, 65, 300, 507):
        piece = bytearray(size)
        fill(memoryview(piece))
        parts += piece
    assert parts == whole
    assert not any(ZEROS)


def test_rfc_8439_sealing():  # §2.8.2, with its nonce
    key, nonce = bytes(range(0x80, 0xA0)), bytes.fromhex("070000004041424344454647")
    sealed = CIPHERS.seal(key, SUNSCREEN, bytes.fromhex("50515253c0c1c2c3c4c5c6c7"), nonce)
    assert sealed.hex() == (
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b"
        "1a71de0a9e060b2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc"
        "3ff4def08e4b7a9de576d26586cec64b61161ae10b594f09e26a7e902ecbd0600691"
    )


def test_wycheproof_x25519():
    """All points of low order are refused, all other keys give what they should, those on the twist too."""
    refused = 0
    for case, _, flags, public, private, shared in CASES["x25519"]:
        try:
            found = x25519(bytes.fromhex(private), bytes.fromhex(public)).hex()
        except WireError:
            assert "ZeroSharedSecret" in flags, case
            assert shared == "00" * 32, case
            refused += 1
            continue
        assert found == shared, case
    assert refused == sum("ZeroSharedSecret" in case[2] for case in CASES["x25519"]) == 31


@pytest.mark.parametrize("size", [0, 31, 33])
def test_keys_of_another_length_are_refused(size):
    with pytest.raises(WireError):
        x25519(bytes(range(32)), bytes(size))


def test_wycheproof_hkdf():
    for case, result, _, ikm, salt, info, size, okm in CASES["hkdf_sha256"]:
        given = bytes.fromhex(ikm), bytes.fromhex(salt), bytes.fromhex(info), size
        if result == "invalid":
            with pytest.raises(ValueError):
                CIPHERS.derive(*given)
        else:
            assert CIPHERS.derive(*given).hex() == okm, case


def test_wycheproof_sealing():
    for case, result, _, key, nonce, associated, text, sealed, tag in CASES["chacha20_poly1305"]:
        given = bytes.fromhex(key), bytes.fromhex(sealed + tag), bytes.fromhex(associated), bytes.fromhex(nonce)
        if result == "invalid":
            with pytest.raises(WireError):
                CIPHERS.open(*given)
            continue
        assert CIPHERS.open(*given).hex() == text, case
        assert CIPHERS.seal(given[0], bytes.fromhex(text), *given[2:]).hex() == sealed + tag, case


def test_wycheproof_streams():
    """Up to the last block of a stream; what would go on past it is never asked for (`Setting` bounds the vector)."""
    for case, result, _, key, nonce, block, text, out in CASES["chacha20"]:
        if result == "valid":
            found = stream(
                bytes.fromhex(key), bytes.fromhex(nonce), int.from_bytes(bytes.fromhex(block), "little"), len(text) // 2
            )
            assert xor(found, bytes.fromhex(text)).hex() == out, case


@pytest.mark.parametrize(
    ("secret", "public", "text", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46b"
            "d25bf5f0595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c"
            "387b2eaeb4302aeeb00d291612bb0c00",
        ),
        (
            "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
            "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
            "af82",
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc659"
            "4a7c15e9716ed28dc027beceea1ec40a",
        ),
    ],
)  # fmt: skip
def test_rfc_8032(secret, public, text, signature):  # §7.1
    secret, public, text, signature = (bytes.fromhex(given) for given in (secret, public, text, signature))
    assert CIPHERS.public(secret) == public
    assert CIPHERS.sign(secret, text) == signature
    CIPHERS.verify(public, signature, text)
    order = 2**252 + 27742317777372353535851937790883648493  # S + L verifies where S is not looked at (§5.1.7)
    larger = int.from_bytes(signature[32:], "little") + order
    with pytest.raises(WireError):
        CIPHERS.verify(public, signature[:32] + larger.to_bytes(32, "little"), text)


def test_identities():
    secret, public = CIPHERS.identity()
    signature = CIPHERS.sign(secret, b"text")
    CIPHERS.verify(public, signature, b"text")
    for wrong in (
        (public, signature, b"texT"),
        (public, bytes(64), b"text"),
        (CIPHERS.identity()[1], signature, b"text"),
    ):
        with pytest.raises(WireError):
            CIPHERS.verify(*wrong)


def test_comparing():
    assert same(b"abc", b"abc")
    assert not same(b"abc", b"abd")
    assert not same(b"abc", b"ab")
