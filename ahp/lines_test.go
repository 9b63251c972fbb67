package ahp

import (
	"bufio"
	"bytes"
	"errors"
	"strconv"
	"strings"
	"testing"
)

// TestLongLines writes a message above the limit. The reader must skip it, return its id and length
// in an error, and then read the next line.
func TestLongLines(t *testing.T) {
	for _, n := range []int{0, 900, 4000, 4090, 100_000} {
		long := `{"result":{"id":1,"x":"` + strings.Repeat("x", 980+n) + `"},"id":7}`
		r := LineReader{In: bufio.NewReader(strings.NewReader(long + "\r\n{\"id\":8}\n")), Limit: 1000}
		_, err := r.Next()
		skip, ok := errors.AsType[*LongLine](err)
		if !ok {
			t.Fatalf("Next on a line of %d bytes = %v; want a LongLine", len(long), err)
		}
		if env, err := skip.Envelope(); err != nil || string(env.ID) != "7" || skip.Size() != len(long) {
			t.Errorf("Next on a line of %d bytes returns a LongLine with ID %s, %v and %d bytes; want ID 7 and the line's size", len(long), env.ID, err, skip.Size())
		}
		if line, err := r.Next(); err != nil || string(line) != `{"id":8}` {
			t.Errorf("the line after a line of %d bytes: %q, %v; want {\"id\":8}", len(long), line, err)
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("{}\n{}\r\n\r\n\n{\"a\":1}"), 20)
	f.Add([]byte(strings.Repeat("x", 5000)+"\r\n"), 5000)
	f.Add([]byte(strings.Repeat("x", 4095)+"\r\ny\n"), 4095)
	f.Fuzz(func(t *testing.T, data []byte, limit int) {
		r := LineReader{In: bufio.NewReader(bytes.NewReader(data)), Limit: limit}
		if limit < 1 || limit > 1<<20 {
			return
		}
		rest := data
		for {
			line, err := r.Next()
			var want []byte
			ended := false
			for len(want) == 0 && !ended {
				var found bool
				want, rest, found = bytes.Cut(rest, []byte("\n"))
				ended = !found
				want = bytes.TrimRight(want, "\r")
			}
			switch {
			case errors.As(err, new(*LongLine)):
				if len(want) <= limit && !ended {
					t.Fatalf("a line of %d bytes is refused; want it read, because the limit is %d", len(want), limit)
				}
				return
			case err != nil:
				if !ended {
					t.Fatalf("the reader ended with %v before the line %s; want all lines", err, strconv.Quote(string(want)))
				}
				return
			case ended || !bytes.Equal(line, want) || len(line) > limit:
				t.Fatalf("line %q; want %q, limit %d", line, want, limit)
			}
		}
	})
}

func TestMessageBecomesOneLine(t *testing.T) {
	message := []byte("{\"a\":\r\n[1,\n2]}")
	if got := LineOf(message); string(got) != "{\"a\":  [1, 2]}\n" {
		t.Errorf("LineOf = %q; want one line with the same JSON", got)
	}
	if string(message) != "{\"a\":\r\n[1,\n2]}" {
		t.Errorf("LineOf has changed its argument to %q; want it as it was", message)
	}
}

// TestInvalidLongLineIsSkippedToItsEnd reads a long line whose envelope is invalid from its second
// byte on. The error must come before the line's end is read, and the next line must follow.
func TestInvalidLongLineIsSkippedToItsEnd(t *testing.T) {
	r := LineReader{In: bufio.NewReaderSize(strings.NewReader("{]"+strings.Repeat("x", 100_000)+"\n{\"id\":8}\n"), 16), Limit: 20}
	_, err := r.Next()
	if long, ok := errors.AsType[*LongLine](err); !ok || !long.Over() || long.Size() > 100 {
		t.Fatalf("Next on an invalid long line = %v; want a LongLine after few bytes", err)
	}
	if r.Whole() {
		t.Error("Whole while the rest of a long line is unread; want false")
	}
	if line, err := r.Next(); err != nil || string(line) != `{"id":8}` {
		t.Errorf("the line after an invalid long line: %q, %v; want {\"id\":8}", line, err)
	}
}
