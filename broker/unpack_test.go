package broker

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"pgregory.net/rapid"
)

// TestPackedFramesAreRestored compresses pieces in arbitrary frames. The Unpacker must restore all
// bytes, and keep no decoder after the last frame. A reader that takes all frames as a single
// stream, like an earlier relay, must restore them too.
func TestPackedFramesAreRestored(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var packed, plain bytes.Buffer
		p, err := newPacker(&packed)
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		for range rapid.IntRange(1, 12).Draw(t, "pieces") {
			piece := bytes.Repeat(rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "piece"), rapid.SampledFrom([]int{1, 2, 50, 5000}).Draw(t, "times"))
			plain.Write(piece)
			if _, err := p.Write(piece); err != nil {
				t.Fatal(err)
			}
			if rapid.Bool().Draw(t, "end") {
				p.endFrame()
			}
		}
		p.endFrame()
		var from io.Reader = bytes.NewReader(packed.Bytes())
		if rapid.Bool().Draw(t, "byte by byte") {
			from = iotest.OneByteReader(from)
		}
		r := NewUnpacker(from)
		defer r.Close()
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, plain.Bytes()) {
			t.Fatalf("%d bytes unpack as %d bytes, %v; want the same bytes", plain.Len(), len(got), err)
		}
		if r.(*unpacker).decoder != nil {
			t.Fatal("the unpacker has a decoder without a frame; want none")
		}
		former, err := zstd.NewReader(bytes.NewReader(packed.Bytes()), zstd.WithDecoderConcurrency(1))
		if err != nil {
			t.Fatal(err)
		}
		defer former.Close()
		if got, err := io.ReadAll(former); err != nil || !bytes.Equal(got, plain.Bytes()) {
			t.Fatalf("a former relay reads %d of %d bytes, %v; want all", len(got), plain.Len(), err)
		}
	})
}

// TestEachFrameHeaderIsRead decompresses frames of various sizes, with and without a checksum, and
// with a single segment. Each must be restored. A frame that is cut off must be refused.
func TestEachFrameHeaderIsRead(t *testing.T) {
	data := bytes.Repeat([]byte("PUB ahp.v1 "), 10_000)
	for _, size := range []int{1, 200, 300, 70_000, len(data)} {
		for _, opts := range [][]zstd.EOption{{zstd.WithEncoderCRC(true)}, {zstd.WithEncoderCRC(false)}, {zstd.WithSingleSegment(true)}} {
			e, err := zstd.NewWriter(nil, append(opts, zstd.WithWindowSize(compressWindow))...)
			if err != nil {
				t.Fatal(err)
			}
			one := e.EncodeAll(data[:min(size, compressWindow)], nil)
			r := NewUnpacker(bytes.NewReader(append(bytes.Clone(one), one...)))
			if got, err := io.ReadAll(r); err != nil || len(got) != 2*min(size, compressWindow) {
				t.Errorf("two frames of %d bytes each unpack to %d bytes, %v; want both", size, len(got), err)
			}
			if _, err := unpack(t, one[:len(one)-1]); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("unpacking a truncated frame = %v; want ErrUnexpectedEOF", err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestIdleFrameEnds writes small and large pieces with pauses. The packer must end its frame after
// the time frameIdle without a large piece, and not before.
func TestIdleFrameEnds(t *testing.T) {
	var out bytes.Buffer
	first := 0 // size of the first frame
	synctest.Test(t, func(t *testing.T) {
		p, err := newPacker(&out)
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		open := func(after time.Duration) bool {
			time.Sleep(after)
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.open
		}
		say := func(n int) {
			t.Helper()
			if _, err := p.Write(make([]byte, n)); err != nil {
				t.Fatal(err)
			}
		}
		say(6)
		if open(0) {
			t.Error("the compressor keeps a frame with few bytes open; want it ended")
		}
		first = out.Len()
		say(someSize)
		for range 9 { // small pieces, like pings
			say(6)
			if !open(frameIdle / 10) {
				t.Fatal("the frame ends before frameIdle; want it open")
			}
		}
		say(someSize)
		if !open(frameIdle / 2) {
			t.Fatal("the frame ends before frameIdle; want it open")
		}
		say(6)
		if open(frameIdle) {
			t.Error("the compressor keeps a frame with few new bytes open after frameIdle; want it ended")
		}
	})
	// This runs outside the bubble, because decoders are pooled.
	if n, err := unpack(t, out.Bytes()[:first]); err != nil || n != 6 {
		t.Errorf("a frame of 6 bytes unpacks to %d bytes, %v; want 6", n, err)
	}
	if n, err := unpack(t, out.Bytes()); err != nil || n != 6+someSize+9*6+someSize+6 {
		t.Errorf("all frames unpack to %d bytes, %v; want all written bytes", n, err)
	}
}
