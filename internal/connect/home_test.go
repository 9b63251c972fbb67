package connect_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"ahprelay/internal/connect"
	"ahprelay/test/natssite"
)

// TestIdleNeedsAFileLock asks whether ahp-connect up runs, while it does and while it does not. A system without file locks,
// such as Windows, cannot know that, so up must count as running there: ahp-connect open refuses otherwise.
func TestIdleNeedsAFileLock(t *testing.T) {
	home := &connect.Home{Dir: t.TempDir()}
	wants := func(when string, want bool) {
		t.Helper()
		if idle, err := home.Idle(); idle != want || err != nil {
			t.Errorf("%s: Idle = %v, %v; want %v", when, idle, err, want)
		}
	}
	wants("without up", true)
	release, err := home.Lock() // as ahp-connect up does
	if err != nil {
		t.Fatal(err)
	}
	wants("while up runs", false)
	release()
	wants("after up", true)
	defer connect.WithoutFileLocks()()
	wants("without file locks", false)
}

// TestUpIsNoFaultWithoutFileLocks runs the doctor's check of the address while ahp-connect up listens there. The check cannot
// know that up runs on a system without file locks, and must report no fault.
func TestUpIsNoFaultWithoutFileLocks(t *testing.T) {
	up, err := connect.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	home := &connect.Home{Dir: t.TempDir()}
	check := func() (ok bool, text string) {
		home.CheckAddress(up.Addr().String(), func(o bool, t string) { ok, text = o, t })
		return ok, text
	}
	if ok, text := check(); ok || !strings.Contains(text, "choose another address") {
		t.Errorf("with file locks, the check reports %v, %q; want a fault, because up does not run", ok, text)
	}
	defer connect.WithoutFileLocks()()
	if ok, text := check(); !ok || !strings.Contains(text, "is in use") {
		t.Errorf("without file locks, the check reports %v, %q; want no fault", ok, text)
	}
}

// TestAwaitUpWaitsForTheAddress starts ahp-connect up in steps, as a service that was just installed: open, which comes next, needs
// the address.
func TestAwaitUpWaitsForTheAddress(t *testing.T) {
	home := &connect.Home{Dir: t.TempDir()}
	up := make(chan error, 1)
	go func() { up <- home.AwaitUp(t.Context()) }()
	waits := func(when string) {
		t.Helper()
		select {
		case err := <-up:
			t.Fatalf("%s, AwaitUp = %v; want that it waits", when, err)
		case <-time.After(3 * connect.UpPause):
		}
	}
	waits("before up")
	release, err := home.Lock()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	address := natssite.FreePort(t)
	if err := home.NoteAddress(address); err != nil {
		t.Fatal(err)
	}
	waits("before up listens")
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := <-up; err != nil {
		t.Errorf("when up listens, AwaitUp = %v; want no error", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := (&connect.Home{Dir: t.TempDir()}).AwaitUp(ctx); err == nil {
		t.Error("without up, AwaitUp = nil; want the end of its context")
	}
}

// TestUpStartsBesideAQuestion starts ahp-connect up while another command, such as doctor, asks whether it runs. up must not take that
// command for another up.
func TestUpStartsBesideAQuestion(t *testing.T) {
	home := &connect.Home{Dir: t.TempDir()}
	asked, err := home.Lock() // as the other command does for a moment
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, asked)
	release, err := home.Lock()
	if err != nil {
		t.Fatalf("up beside a question whether it runs: %v; want no error", err)
	}
	defer release()
	if _, err := home.Lock(); !errors.Is(err, connect.ErrRuns) {
		t.Errorf("a second up: %v; want ErrRuns", err)
	}
}
