package hostagent

import (
	"bytes"
	"errors"
	"testing"

	"ahprelay/ahp"
	"ahprelay/routing"
)

func newViewerSocket(t *testing.T) *viewerSocket {
	t.Helper()
	return &viewerSocket{came: make(chan struct{}, 1), life: t.Context()}
}

// framesOf returns message as frames of at most size bytes, as an audience delivers it.
func framesOf(message []byte, size int) (frames []routing.Frame) {
	for at := 0; at < len(message); at += size {
		end := min(len(message), at+size)
		f := routing.Frame{Data: encodePiece(message[at:end], at == 0, end == len(message), false)}
		if end == len(message) {
			f.Messages = 1
		}
		frames = append(frames, f)
	}
	return frames
}

// TestViewerReadsLongMessages delivers a message longer than a viewer's queue, and then a short
// message. The viewer must get both whole. Changing a long message after reading must not change
// the frames, which other viewers share.
func TestViewerReadsLongMessages(t *testing.T) {
	s := newViewerSocket(t)
	long, short := bytes.Repeat([]byte("x"), viewerQueue+routing.MaxLent), []byte("short")
	frames := framesOf(long, 128<<10)
	s.Deliver(frames)
	got, _, err := s.Read()
	if err != nil || !bytes.Equal(got, long) {
		t.Fatalf("a message of %d bytes arrives as %d bytes, %v; want the same bytes", len(long), len(got), err)
	}
	whole := framesOf(long[:routing.MaxLent+1], len(long))
	s.Deliver(whole)
	got, _, err = s.Read()
	if err != nil {
		t.Fatal(err)
	}
	clear(got)
	if !bytes.Equal(whole[0].Data[5:], long[:routing.MaxLent+1]) {
		t.Error("a change of the message that Read returned has changed the frames shared with other viewers; want a copy")
	}
	s.Deliver(framesOf(short, len(short)))
	if !s.Whole() {
		t.Error("Whole = false with a complete message; want true")
	}
	if got, _, err = s.Read(); err != nil || !bytes.Equal(got, short) || s.Whole() {
		t.Errorf("Read = %q, %v, and Whole = %v afterwards; want the message, no error and false", got, err, s.Whole())
	}
}

// TestViewerThatReadsNothingEnds fills a viewer's queue. The viewer's connection must end with
// ErrStalled, and its frames must be dropped.
func TestViewerThatReadsNothingEnds(t *testing.T) {
	s := newViewerSocket(t)
	message := framesOf(bytes.Repeat([]byte("x"), 1<<20), 1<<20)
	for range 1 + viewerQueue>>20 {
		s.Deliver(message)
	}
	if _, _, err := s.Read(); !errors.Is(err, routing.ErrStalled) {
		t.Errorf("Read by a viewer that reads nothing = %v; want ErrStalled", err)
	}
	if n := len(s.frames); n > 0 {
		t.Errorf("%d frames are kept for a viewer whose connection has ended; want 0", n)
	}
}

// TestLongFirstMessageLeavesRoom delivers a message nearly as long as a viewer's queue, and a short
// one. The viewer must get both.
func TestLongFirstMessageLeavesRoom(t *testing.T) {
	s := newViewerSocket(t)
	messages := [][]byte{bytes.Repeat([]byte("x"), viewerQueue-100), bytes.Repeat([]byte("y"), 200)}
	for range 2 {
		for _, message := range messages {
			s.Deliver(framesOf(message, 128<<10))
		}
		for _, want := range messages {
			if got, _, err := s.Read(); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("a message of %d bytes arrives as %d bytes, %v; want the same bytes", len(want), len(got), err)
			}
		}
	}
}

// TestViewerEndsWithItsAudience delivers a message and closes the audience. The viewer must read
// the message, and then an error.
func TestViewerEndsWithItsAudience(t *testing.T) {
	s := newViewerSocket(t)
	s.Deliver(framesOf([]byte("last"), 4))
	s.Closed(ahp.CloseResync, "gone")
	if got, _, err := s.Read(); err != nil || string(got) != "last" {
		t.Errorf("the last message is %q, %v; want last", got, err)
	}
	if _, _, err := s.Read(); err == nil {
		t.Error("Read returned no error after the last message; want one")
	}
}
