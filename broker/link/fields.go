package link

import "encoding/binary"

// Fields decodes a packet's fields, one after the other, from the front of B. If a
// field is missing or malformed, Bad becomes true, and this and all later fields are
// zero.
type Fields struct {
	B   []byte
	Bad bool
}

// Byte reads one byte.
func (f *Fields) Byte() byte {
	if len(f.B) == 0 {
		f.Bad = true
		return 0
	}
	c := f.B[0]
	f.B = f.B[1:]
	return c
}

// Uvarint reads an unsigned varint.
func (f *Fields) Uvarint() uint64 {
	v, n := binary.Uvarint(f.B)
	if n <= 0 {
		f.Bad, f.B = true, nil
		return 0
	}
	f.B = f.B[n:]
	return v
}

// Varint reads a signed (zigzag) varint.
func (f *Fields) Varint() int64 {
	v, n := binary.Varint(f.B)
	if n <= 0 {
		f.Bad, f.B = true, nil
		return 0
	}
	f.B = f.B[n:]
	return v
}

// Bytes reads a length and that many bytes. The result aliases B.
func (f *Fields) Bytes() []byte {
	n := f.Uvarint()
	if n > uint64(len(f.B)) {
		f.Bad, f.B = true, nil
		return nil
	}
	b := f.B[:n:n]
	f.B = f.B[n:]
	return b
}
