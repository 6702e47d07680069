"""moegg.units: sizes in, sizes out."""
import pytest

from moegg.errors import UsageError
from moegg.units import fmt_bytes, fmt_count, fmt_rate, parse_size

GiB = 1 << 30


@pytest.mark.parametrize("text, value", [
    ("0", 0), ("4096", 4096), ("12G", 12 * GiB), ("12g", 12 * GiB), ("12GB", 12 * GiB), ("12GiB", 12 * GiB),
    ("1.5G", 3 * GiB // 2), (" 512M ", 512 << 20), ("3 K", 3 << 10), ("2T", 2 << 40), ("17B", 17)])
def test_g_means_gib_in_every_spelling(text, value):
    assert parse_size(text) == value


@pytest.mark.parametrize("text", ["", "G", "-1G", "1e9", "12GG", "nan", "inf", "1,5G", "0x10", "12 G B"])
def test_what_is_no_size_names_the_option(text):
    with pytest.raises(UsageError, match=r"^--ram: .*got .*expected .* \[usage\]$"):
        parse_size(text, "--ram")


def test_formatting():
    assert [fmt_bytes(n) for n in (0, 1023, 1024, 3 << 20, 44236800000, 1 << 41)] == [
        "0 B", "1023 B", "1.0 KiB", "3.0 MiB", "41.2 GiB", "2.0 TiB"]
    assert [fmt_count(n) for n in (512, 21_200_000, 30_532_122_624)] == ["512", "21.2 M", "30.5 B"]
    assert fmt_rate(1_520_000_000) == "1.52 GB/s"
