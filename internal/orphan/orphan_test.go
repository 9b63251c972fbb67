package orphan

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/iotest"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == Command { // the process that waits
		_, _ = io.Copy(os.Stdout, Input())
		return
	}
	os.Exit(m.Run())
}

// TestLastWholeLineCounts passes bytes to lastLine at once and byte by byte. It must return the
// last whole line, or report a farewell.
func TestLastWholeLineCounts(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	for _, test := range []struct {
		name, in, want string
		farewell       bool
	}{
		{"nothing", "", "", false},
		{"a line", "one\n", "one", false},
		{"a later line", "one\ntwo\nthree\n", "three", false},
		{"the parent died while it wrote", "one\ntw", "one", false},
		{"half of the first line", "on", "on", false},
		{"an empty line", "one\n\n", "", false},
		{"a long line, and a short one", long + "\nshort\n", "short", false},
		{"a short line, and a long one", "short\n" + long + "\n", long, false},
		{"a farewell", "one\n" + Farewell + "\ntwo\n", "", true},
	} {
		for way, in := range map[string]io.Reader{"at once": strings.NewReader(test.in), "byte for byte": iotest.OneByteReader(strings.NewReader(test.in))} {
			if got, farewell := lastLine(in); string(got) != test.want || farewell != test.farewell {
				t.Errorf("%s, read %s: the last line is %.20q, farewell %v; want %.20q, %v", test.name, way, got, farewell, test.want, test.farewell)
			}
		}
	}
	endless := strings.Repeat("x", 4*maxLine)
	for rest, want := range map[string]string{"": endless[:maxLine], "\n": endless[:maxLine], "\nshort\n": "short"} {
		if got, farewell := lastLine(strings.NewReader(endless + rest)); string(got) != want || farewell {
			t.Errorf("a line that is too long, and then %q: the last line has %d bytes, %.20q, farewell %v; want %d bytes, %.20q, false", rest, len(got), got, farewell, len(want), want)
		}
	}
}

// TestProcessWaitsForItsParent starts a process and ends its input, as a parent's death does. The
// process must then have the parent's last line. After a farewell it must end without a line.
func TestProcessWaitsForItsParent(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"one\ntwo\n": "two", "one\n" + Farewell + "\n": ""} {
		cmd := exec.Command(os.Args[0], Command)
		cmd.Stdin = strings.NewReader(in) // the process gets a pipe
		if got, err := cmd.Output(); err != nil || string(got) != want {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
	}
}

// FuzzLastLine passes arbitrary bytes to lastLine at once and byte by byte. Both must give the same
// result.
func FuzzLastLine(f *testing.F) {
	f.Add("one\ntwo\n" + Farewell + "\n")
	f.Add("one\ntw")
	f.Fuzz(func(t *testing.T, in string) {
		line, farewell := lastLine(strings.NewReader(in))
		each, last := lastLine(iotest.OneByteReader(strings.NewReader(in)))
		if string(line) != string(each) || farewell != last {
			t.Errorf("lastLine(%q) = %q, %v at once, and %q, %v byte for byte; want the same", in, line, farewell, each, last)
		}
	})
}
