package hostagent

import (
	"bufio"
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
	out    ahp.LineReader
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
	s.out = ahp.LineReader{In: bufio.NewReader(outputReader{out, s.ended}), Limit: limit, Room: func(have, more int) error {
		if have > routing.Reserved || have+more <= routing.Reserved {
			return nil
		}
		return room.wait(limit) // the length is not known yet
	}}
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

func (s *commandSocket) Whole() bool { return false }

// Read implements hostSocket. At the end of the output, the error describes how the
// program ended.
func (s *commandSocket) Read() ([]byte, bool, error) {
	line, err := s.out.Next()
	if long, ok := errors.AsType[*ahp.LongLine](err); ok {
		err = skipped(&long.Skimmer, s.out.Limit)
	}
	if err != nil && !errors.Is(err, errTooBig) {
		s.Close("")
		err = &programError{s.cmd.ProcessState}
	}
	return line, false, err
}

func (s *commandSocket) Write(message []byte, _ bool) error {
	_, err := s.in.Write(ahp.LineOf(message))
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
