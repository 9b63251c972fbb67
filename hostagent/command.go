package hostagent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"

	"ahprelay/ahp"
	"ahprelay/internal/procgroup"
	"ahprelay/routing"
)

// commandSocket is a hostSocket over the standard input and output of a program, with
// one message per line. When the program ends, its children are killed: they may keep its
// output open.
type commandSocket struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    lineReader
	output io.Closer // below out
	end    sync.Once
	ended  chan struct{} // closed when the program has ended
}

// Times for ending a program.
const (
	// exitTime is how long the program may run after its standard input has ended.
	exitTime = 3 * time.Second

	// outputTime is how long the program's children may write to its standard error
	// after its end, and how long a read of its output then waits for them.
	outputTime = time.Second
)

func startCommand(command, environment []string, stderr io.Writer, limit int, room roomFunc) (hostSocket, error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Env = environment
	cmd.Stderr = stderr
	cmd.WaitDelay = outputTime
	procgroup.Own(cmd)
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("upstream %s: %w", command[0], err)
	}
	// StdoutPipe is not used, because Wait would close it before all output is read.
	out, outWriter, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("upstream %s: %w", command[0], err), in.Close())
	}
	cmd.Stdout = outWriter
	err = cmd.Start()
	_ = outWriter.Close()
	if err != nil {
		_, _ = in.Close(), out.Close() // Start has closed some
		return nil, fmt.Errorf("upstream: %w: %w", errStart, err)
	}
	s := &commandSocket{cmd: cmd, in: in, output: out, ended: make(chan struct{})}
	s.out = lineReader{bufio.NewReader(outputReader{out, s.ended}), limit, room}
	go func() {
		_ = cmd.Wait()
		procgroup.Kill(cmd)
		close(s.ended)
		_ = out.SetReadDeadline(time.Now().Add(outputTime)) // for a read that waits already
	}()
	return s, nil
}

// An outputReader reads a program's output. After the program's end, each read waits for at most
// outputTime, because a process outside the program's group may keep the output open. Windows has
// no such limit.
type outputReader struct {
	*os.File
	ended <-chan struct{}
}

func (r outputReader) Read(p []byte) (int, error) {
	select {
	case <-r.ended:
		_ = r.SetReadDeadline(time.Now().Add(outputTime))
	default:
	}
	return r.File.Read(p)
}

// Whole implements hostSocket.
func (s *commandSocket) Whole() bool { return false }

// Read implements hostSocket. At the end of the output, the error describes how the
// program ended.
func (s *commandSocket) Read() ([]byte, bool, error) {
	line, err := s.out.next()
	if err != nil && !errors.Is(err, errTooBig) {
		s.Close("")
		err = &programError{s.cmd.ProcessState}
	}
	return line, false, err
}

// Write implements hostSocket.
func (s *commandSocket) Write(message []byte, _ bool) error {
	_, err := s.in.Write(lineOf(message))
	return err
}

// Close closes the program's standard input, and kills the program's process
// group if the program does not exit in time. It returns when the program has
// ended.
func (s *commandSocket) Close(string) {
	s.end.Do(func() {
		_ = s.in.Close()
		kill := time.AfterFunc(exitTime, func() { procgroup.Kill(s.cmd) })
		defer kill.Stop()
		<-s.ended
		_ = s.output.Close()
	})
}

// lineOf returns a message as one line: it replaces line breaks, which JSON
// permits as white space.
func lineOf(message []byte) []byte {
	line := make([]byte, 0, len(message)+1)
	line = append(append(line, message...), '\n')
	for i, c := range message {
		if c == '\n' || c == '\r' {
			line[i] = ' '
		}
	}
	return line
}

// A lineReader reads messages, one per line.
type lineReader struct {
	in    *bufio.Reader
	limit int // most bytes in a message
	room  roomFunc
}

// next returns the next line that is not empty, without its line break. Input
// that ends without a line break is an incomplete message, and is dropped. A
// line above the limit is skipped; if it was a request or response, the error
// is a [*skippedError].
func (r lineReader) next() ([]byte, error) {
	var line []byte
	for {
		piece, err := r.in.ReadSlice('\n')
		text := piece
		if err == nil {
			text = bytes.TrimRight(piece, "\r\n")
		}
		if len(line)+len(text) > r.limit+len("\r") {
			return nil, r.skip(line, piece, err)
		}
		if len(line) <= routing.Reserved && len(line)+len(piece) > routing.Reserved {
			if err := r.room.wait(r.limit); err != nil { // the length is not known yet
				return nil, err
			}
		}
		line = append(line, piece...)
		if err == nil {
			line = bytes.TrimRight(line, "\r\n")
		}
		switch {
		case len(line) > r.limit && err == nil:
			return nil, r.skip(line, nil, nil)
		case err == nil && len(line) > 0:
			return line, nil
		case err != nil && !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// skip reads the rest of a line above the limit. piece is the part already read, and
// err is the error of that read.
func (r lineReader) skip(line, piece []byte, err error) error {
	var skim ahp.Skimmer
	_, _ = skim.Write(line)
	_, _ = skim.Write(bytes.TrimRight(piece, "\r\n"))
	for errors.Is(err, bufio.ErrBufferFull) && !skim.Over() {
		piece, err = r.in.ReadSlice('\n')
		_, _ = skim.Write(bytes.TrimRight(piece, "\r\n"))
	}
	if err != nil && !skim.Over() {
		return err
	}
	return skipped(&skim, r.limit)
}
