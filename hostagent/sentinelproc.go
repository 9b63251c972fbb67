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
)

// A SentinelCommand says how to start a sentinel: a process that calls
// [RunSentinel] on its standard input.
type SentinelCommand struct {
	Command []string  // program and arguments; empty: no sentinel
	Stderr  io.Writer // of the process; default: none
}

// Times of a sentinel's process.
const (
	// farewellTime is how long it may take to end when it is told to.
	farewellTime = 2 * time.Second

	// sentinelAgain is the wait before another is started in place of one that
	// was ended by somebody.
	sentinelAgain = 10 * time.Second
)

// sentinelEnv are the variables of the environment that a sentinel gets: what it
// needs to reach relays. Others may hold secrets that are not for it.
var sentinelEnv = []string{
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", "SYSTEMROOT", "TZ",
}

// sentinelTuning keeps a process small that waits all its life.
var sentinelTuning = []string{"GOMAXPROCS=1", "GOGC=25"}

// A sentinel is the host-agent's end of its sentinel.
type sentinel struct {
	cfg   SentinelCommand
	log   *slog.Logger
	input func() (sentinelInput, error) // as it is now
	news  chan struct{}                 // what it says has changed; holds one

	again time.Duration // the wait before one that has ended is replaced

	ready chan struct{} // closed by run when there is one that knows its input, or none can be started
	once  sync.Once
}

func newSentinel(cfg SentinelCommand, log *slog.Logger, now func() (sentinelInput, error)) *sentinel {
	return &sentinel{cfg: cfg, log: log, input: now, news: make(chan struct{}, 1), again: sentinelAgain, ready: make(chan struct{})}
}

// run keeps a sentinel until ctx ends, and then says farewell. It returns when
// there is none left.
func (s *sentinel) run(ctx context.Context) {
	defer s.setReady()
	for ctx.Err() == nil {
		err := s.keep(ctx)
		s.setReady()
		if ctx.Err() != nil {
			return
		}
		s.log.Warn("no sentinel: clients would have to wait if this host-agent crashed", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(s.again):
		}
	}
}

func (s *sentinel) setReady() { s.once.Do(func() { close(s.ready) }) }

// keep keeps one process, and returns why it ended.
func (s *sentinel) keep(ctx context.Context) error {
	cmd := exec.Command(s.cfg.Command[0], s.cfg.Command[1:]...)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), notForSentinel), sentinelTuning...)
	cmd.Stderr = s.cfg.Stderr
	cmd.WaitDelay = outputTime
	ownSession(cmd)
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
		if in, err := s.input(); err == nil { // else the one before stays
			writeSentinelInput(pipe, in)
			s.setReady()
		}
		select {
		case <-s.news:
		case <-ctx.Done():
		case <-ended:
			return fmt.Errorf("it ended: %v", cmd.ProcessState)
		}
	}
	writeSentinelInput(pipe, sentinelInput{Farewell: true})
	_ = pipe.Close()
	kill := time.AfterFunc(farewellTime, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	<-ended
	return context.Cause(ctx)
}

// writeSentinelInput fails if nobody is there, which is noticed otherwise.
func writeSentinelInput(pipe io.Writer, in sentinelInput) {
	line, err := json.Marshal(in)
	if err != nil {
		panic(err) // no field can fail
	}
	_, _ = pipe.Write(append(line, '\n'))
}

func notForSentinel(variable string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return !slices.Contains(sentinelEnv, strings.ToUpper(name))
}
