//go:build unix

package hostagent

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ahprelay/internal/procgroup"
)

// start starts a test program as the host, and ends it after the test. how names the program's
// behaviour.
func start(t *testing.T, how string, limit int) *commandSocket {
	t.Helper()
	var stderr bytes.Buffer
	sock, err := startCommand(child(how), nil, &stderr, limit, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sock.Close("") })
	return sock.(*commandSocket)
}

func wantRead(t *testing.T, sock hostSocket, want string) {
	t.Helper()
	message, binary, err := sock.Read()
	if string(message) != want || binary || err != nil {
		t.Errorf("read %q, %v, %v; want %q", message, binary, err, want)
	}
}

func TestCommandSpeaksByItsStreams(t *testing.T) {
	t.Run("messages", func(t *testing.T) {
		sock := start(t, "echo", 100_000)
		for _, message := range []string{`{"a":1}`, "{\"a\":\n1,\r\n\"b\":2}", strings.Repeat("x", 100_000), `{}`} {
			if err := sock.Write([]byte(message), false); err != nil {
				t.Fatal(err)
			}
			wantRead(t, sock, strings.NewReplacer("\n", " ", "\r", " ").Replace(message))
		}
		sock.Close("")
		if !sock.cmd.ProcessState.Success() {
			t.Errorf("program ended with %v; want success", sock.cmd.ProcessState)
		}
		if err := sock.Write([]byte("{}"), false); err == nil {
			t.Error("Write to an ended program succeeds; want an error")
		}
	})
	t.Run("crashes", func(t *testing.T) {
		sock := start(t, "crash", 1000)
		wantRead(t, sock, `{"method":"last words"}`)
		_, _, err := sock.Read()
		if err == nil || err.Error() != "the program ended: exit status 3" {
			t.Errorf("reading from an ended program: %v; want its exit status", err)
		}
		if got := sock.cmd.Stderr.(*bytes.Buffer).String(); got != "out of luck\n" {
			t.Errorf("standard error is %q; want out of luck", got)
		}
	})
	t.Run("ends in a line", func(t *testing.T) {
		sock := start(t, "half", 1000)
		wantRead(t, sock, `{"method":"whole"}`)
		if message, _, err := sock.Read(); err == nil || err.Error() != "the program ended: exit status 0" {
			t.Errorf("read %q, %v; want the end", message, err)
		}
	})
	t.Run("writes a huge line", func(t *testing.T) {
		sock := start(t, "huge", 1000)
		if _, _, err := sock.Read(); !tooBig(err) || !strings.HasPrefix(err.Error(), "message too big: more than 1000 bytes") {
			t.Errorf("reading a line above the limit: %v; want too big", err)
		}
		sock.kill(t)
	})
}

// kill kills the program and closes the socket. It fails unless Close has waited for the program's
// end.
func (s *commandSocket) kill(t *testing.T) {
	t.Helper()
	procgroup.Kill(s.cmd)
	s.Close("")
	if s.cmd.ProcessState == nil {
		t.Error("Close returned before the program's end; want it to wait")
	}
}

// TestCommandGroupIsKilled closes the socket of a program that continues after its input ended.
// After exitTime, Close must kill the program and its children.
func TestCommandGroupIsKilled(t *testing.T) {
	for _, how := range []string{"deaf", "parent"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			sock := start(t, how, 1000)
			wantRead(t, sock, `{"method":"ready"}`)
			began := time.Now()
			sock.Close("")
			if took := time.Since(began); took < exitTime || took > 10*exitTime {
				t.Errorf("Close took %v; want %v", took, exitTime)
			}
			sock.awaitGroup(t)
			if _, _, err := sock.Read(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
				t.Errorf("reading from a killed program: %v; want how it ended", err)
			}
		})
	}
}

// TestChildrenKeepNoConnectionOpen reads from a program that dies and leaves a child with its
// output. Read must return the program's end, and the child must end.
func TestChildrenKeepNoConnectionOpen(t *testing.T) {
	sock := start(t, "orphan", 1000)
	ended := make(chan error, 1)
	go func() {
		for {
			if _, _, err := sock.Read(); err != nil {
				ended <- err
				return
			}
		}
	}()
	select {
	case err := <-ended:
		if err.Error() != "the program ended: exit status 3" {
			t.Errorf("reading from a dead program: %v; want its exit status", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("reading from a dead program waits for its child; want the program's end")
		procgroup.Kill(sock.cmd)
		<-ended
	}
	sock.awaitGroup(t)
}

// TestProgramsOutsideTheGroupKeepNoConnectionOpen reads from a program that dies and leaves its
// output to a program outside its process group. Read must return the program's end.
func TestProgramsOutsideTheGroupKeepNoConnectionOpen(t *testing.T) {
	sock := start(t, "stray", 1000)
	stray, ended := make(chan int, 1), make(chan error, 1)
	go func() {
		for {
			message, _, err := sock.Read()
			if err != nil {
				ended <- err
				return
			}
			if pid, err := strconv.Atoi(string(message)); err == nil {
				stray <- pid
			}
		}
	}()
	kill := sync.OnceFunc(func() { _ = syscall.Kill(<-stray, syscall.SIGKILL) })
	t.Cleanup(kill)
	select {
	case err := <-ended:
		if err.Error() != "the program ended: exit status 3" {
			t.Errorf("reading from a dead program: %v; want its exit status", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("reading from a dead program waits for a program outside its group; want the program's end")
		kill()
		<-ended
	}
}

// awaitGroup waits until the program's process group has ended.
func (s *commandSocket) awaitGroup(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); syscall.Kill(-s.cmd.Process.Pid, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the program's children run a minute after its end; want them ended")
		}
	}
}

func TestMissingCommandIsReported(t *testing.T) {
	if _, err := startCommand([]string{"/nonexistent/host"}, nil, nil, 1000, nil); err == nil || !strings.Contains(err.Error(), "/nonexistent/host") {
		t.Errorf("start: %v; want an error that names the command", err)
	}
}
