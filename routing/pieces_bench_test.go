package routing

import (
	"testing"

	"ahprelay/broker/link"
)

// BenchmarkBodyTable measures how long the body table takes to find a frame of 512 bytes, or to add
// it. Of each hundred frames, only the first is new.
func BenchmarkBodyTable(b *testing.B) {
	table := newBodyTable(8 << 20)
	frame, ch := action(0), &channel{}
	b.SetBytes(int64(len(frame)))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%benchClients == 0 {
			frame = action(i)
		}
		hash := bodyHash(frame)
		if table.find(hash, frame) == nil {
			table.add(hash, frame, ch)
		}
	}
}

// benchBatch returns an empty batch, and 100 streams and 64 bodies to add to it.
func benchBatch() (*batch, []*stream, []*body) {
	t := &batch{room: 1 << 30, floor: func() uint64 { return 1 }, left: func() uint64 { return 1 << 30 }}
	streams, bodies := make([]*stream, benchClients), make([]*body, 64)
	for i := range streams {
		streams[i] = &stream{conn: uint64(i + 1)}
	}
	for i := range bodies {
		bodies[i] = &body{number: uint64(i + 1), size: 512}
	}
	return t, streams, bodies
}

func (t *batch) addAll(streams []*stream, bodies []*body) {
	for _, body := range bodies {
		for _, s := range streams {
			t.add(s, body)
		}
	}
}

// BenchmarkRefsAppend measures how long a batch takes to collect and encode 6,400 references.
func BenchmarkRefsAppend(b *testing.B) {
	t, streams, bodies := benchBatch()
	var record []byte
	b.ReportAllocs()
	for b.Loop() {
		t.addAll(streams, bodies)
		record = t.append(record[:0])
		t.takeSent()
	}
	b.ReportMetric(float64(len(record)), "B/record")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(streams)*len(bodies)), "ns/reference")
}

// BenchmarkRefsRead measures how long a relay takes to decode the record from BenchmarkRefsAppend.
func BenchmarkRefsRead(b *testing.B) {
	t, streams, bodies := benchBatch()
	t.addAll(streams, bodies)
	record := t.append(nil)
	var list []uint64
	b.ReportAllocs()
	for b.Loop() {
		f := &link.Fields{B: record}
		f.Byte()
		last, entries := f.Uvarint(), f.Uvarint()
		for range entries {
			var err error
			if list, last, err = readBodyList(f, list[:0], last); err != nil {
				b.Fatal(err)
			}
			if err := readConnSet(f, func(uint64) {}); err != nil {
				b.Fatal(err)
			}
		}
	}
}
