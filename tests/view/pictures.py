"""Compares pictures of the page with kept ones, so coarsely that another machine's fonts pass: a picture is a grid of cells
of 40 x 40 pixels, of each of which the mean color counts. A table that lost its rows, a chart that is not drawn, a color that
changed or a style that is missing alters many cells; letters of another font alter each cell a little. Nothing but Python's
standard library is needed.

    kept = read_png(path)                    # (width, height, rows of bytes, 3 a pixel)
    share = difference(picture, kept)        # of cells that differ, from 0 to 1
"""

import struct
import zlib

SMALL = 288  # pixels of a kept picture's width: cells are whole pixels in both
CELLS = (36, 25)
TOLERANCE = 14  # of 255, in the mean of a cell's channel
ALLOWED = .03  # of the cells


def read_png(data):
    """8 bits a channel, RGB or RGBA, not interlaced: as Chromium and write_png write them."""
    if data[:8] != b"\x89PNG\r\n\x1a\n":
        raise ValueError("no PNG")
    at, packed, width, height, channels = 8, b"", 0, 0, 0
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            if depth != 8 or color not in (2, 6) or interlaced:
                raise ValueError("a PNG of another kind")
            channels = 3 if color == 2 else 4
        if kind == b"IDAT":
            packed += body
        at += 12 + length
    raw, stride = zlib.decompress(packed), width * channels
    rows, before = [], bytes(stride)
    for y in range(height):
        filter_, line = raw[y * (stride + 1)], bytearray(raw[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        unfilter(filter_, line, before, channels)
        rows.append(bytes(line))
        before = line
    if channels == 4:
        rows = [bytes(b for i, b in enumerate(row) if i % 4 != 3) for row in rows]
    return width, height, rows


def unfilter(kind, line, before, n):
    """Undoes the filter of a PNG's row in place."""
    if kind == 1:
        for i in range(n, len(line)):
            line[i] = (line[i] + line[i - n]) & 255
    elif kind == 2:
        for i in range(len(line)):
            line[i] = (line[i] + before[i]) & 255
    elif kind == 3:
        for i in range(len(line)):
            line[i] = (line[i] + ((line[i - n] if i >= n else 0) + before[i]) // 2) & 255
    elif kind == 4:
        for i in range(len(line)):
            a, b, c = (line[i - n] if i >= n else 0), before[i], (before[i - n] if i >= n else 0)
            p = a + b - c
            pa, pb, pc = abs(p - a), abs(p - b), abs(p - c)
            line[i] = (line[i] + (a if pa <= pb and pa <= pc else b if pb <= pc else c)) & 255


def write_png(picture):
    width, height, rows = picture

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    raw = b"".join(b"\0" + row for row in rows)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def shrunk(picture, columns, lines):
    """The mean color of each of columns x lines cells, as a picture of that size."""
    width, height, rows = picture
    out = []
    for j in range(lines):
        y0, y1 = j * height // lines, max(j * height // lines + 1, (j + 1) * height // lines)
        line = bytearray()
        for i in range(columns):
            x0, x1 = i * width // columns, max(i * width // columns + 1, (i + 1) * width // columns)
            n = (y1 - y0) * (x1 - x0)
            for c in range(3):
                line.append(sum(sum(rows[y][3 * x0 + c:3 * x1:3]) for y in range(y0, y1)) // n)
        out.append(bytes(line))
    return columns, lines, out


def small(picture):
    """The picture as it is kept."""
    return shrunk(picture, SMALL, SMALL * picture[1] // picture[0])


def difference(picture, kept):
    """The share of cells whose mean colors differ by more than the tolerance."""
    a, b = shrunk(picture, *CELLS)[2], shrunk(kept, *CELLS)[2]
    differ = 0
    for row_a, row_b in zip(a, b):
        for i in range(0, len(row_a), 3):
            differ += max(abs(row_a[i + c] - row_b[i + c]) for c in range(3)) > TOLERANCE
    return differ / (CELLS[0] * CELLS[1])
