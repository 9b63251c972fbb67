package hostagent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"ahprelay/internal/clock"
	"ahprelay/internal/procgroup"
)

// A SentinelCommand starts a sentinel: a process that calls [RunSentinel] on its
// standard input.
type SentinelCommand struct {
	Command []string  // program and arguments; empty for no sentinel
	Stderr  io.Writer // the process's standard error; default: none
}

// Times of a sentinel's process.
const (
	// farewellTime is how long the process may take to end after the farewell.
	farewellTime = 2 * time.Second

	// sentinelAgain is the pause before an ended sentinel is replaced.
	sentinelAgain = 10 * time.Second
)

// sentinelEnv lists the environment variables that a sentinel gets: those needed to
// reach relays. Other variables may contain secrets.
var sentinelEnv = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "SYSTEMROOT", "TZ",
}

// sentinelTuning keeps the waiting process small.
var sentinelTuning = []string{"GOMAXPROCS=1", "GOGC=25"}

// A sentinel starts and feeds the sentinel process of a host-agent.
type sentinel struct {
	cfg   SentinelCommand
	log   *slog.Logger
	input func() (sentinelInput, error) // returns the current input
	news  chan struct{}                 // the input has changed; capacity 1

	again time.Duration // pause before an ended process is replaced, or an unreadable input is read again

	ready chan struct{} // closed by run when a process has its input, or the attempt has failed
	once  sync.Once
}

func newSentinel(cfg SentinelCommand, log *slog.Logger, now func() (sentinelInput, error)) *sentinel {
	return &sentinel{cfg: cfg, log: log, input: now, news: make(chan struct{}, 1), again: sentinelAgain, ready: make(chan struct{})}
}

// run keeps a sentinel running until ctx ends, and then sends the farewell. It returns
// when the process has ended.
func (s *sentinel) run(ctx context.Context) {
	defer s.setReady()
	for ctx.Err() == nil {
		err := s.keep(ctx)
		s.setReady()
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("sentinel unavailable", "effect", "after a crash, clients wait for the resume window", "error", err)
		clock.Sleep(ctx, s.again)
	}
}

func (s *sentinel) setReady() { s.once.Do(func() { close(s.ready) }) }

// keep runs one process, and returns why it ended.
func (s *sentinel) keep(ctx context.Context) error {
	cmd := exec.Command(s.cfg.Command[0], s.cfg.Command[1:]...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), notForSentinel), sentinelTuning...)
	cmd.Stderr = s.cfg.Stderr
	cmd.WaitDelay = outputTime
	procgroup.OwnSession(cmd)
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for ctx.Err() == nil {
		var again <-chan time.Time
		if in, err := s.input(); err == nil {
			writeSentinelInput(pipe, in)
		} else { // the process keeps its last input
			again = time.After(s.again)
		}
		s.setReady()
		select {
		case <-s.news:
		case <-again:
		case <-ctx.Done():
		case <-ended:
			return fmt.Errorf("sentinel ended: %v", cmd.ProcessState)
		}
	}
	writeSentinelInput(pipe, sentinelInput{Farewell: true})
	_ = pipe.Close()
	kill := time.AfterFunc(farewellTime, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	<-ended
	return context.Cause(ctx)
}

// writeSentinelInput writes a line of input. It ignores write errors, because keep
// notices the end of the process.
func writeSentinelInput(pipe io.Writer, in sentinelInput) {
	line, err := json.Marshal(in)
	if err != nil {
		panic(err) // all fields can be encoded
	}
	_, _ = pipe.Write(append(line, '\n'))
}

func notForSentinel(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return !slices.Contains(sentinelEnv, strings.ToUpper(name))
}
