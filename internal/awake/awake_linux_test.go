package awake

import (
	"bufio"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"
)

// A logind stands for systemd-logind. An inhibitor is the write end of a pipe. It is released when
// all copies of that end are closed.
type logind struct{ locks chan *lock }

type lock struct {
	what, who, mode string
	copy            int           // logind's own copy, which handedOver closes
	released        chan struct{} // closed when no copy is open
}

func (l *logind) Inhibit(what, who, _, mode string) (dbus.UnixFD, *dbus.Error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	fd, err := syscall.Dup(int(write.Fd()))
	_ = write.Close()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	k := &lock{what, who, mode, fd, make(chan struct{})}
	go func() {
		defer close(k.released)
		_, _ = read.Read(make([]byte, 1)) // returns when the last copy is closed
		_ = read.Close()
	}()
	l.locks <- k
	return dbus.UnixFD(fd), nil
}

// next waits for the next inhibitor.
func (l *logind) next() *lock { return <-l.locks }

// handedOver closes logind's own copy. The caller has proof that logind's answer has arrived:
// godbus could not send the answer with a closed descriptor.
func (k *lock) handedOver(t *testing.T) {
	t.Helper()
	if err := syscall.Close(k.copy); err != nil {
		t.Fatal(err)
	}
}

func (k *lock) isReleased() bool {
	select {
	case <-k.released:
		return true
	default:
		return false
	}
}

// serveLogind serves a logind on the bus from bus, and returns it with its connection.
func serveLogind(t *testing.T) (*dbus.Conn, *logind) {
	t.Helper()
	conn, err := dbus.ConnectSystemBus()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	l := &logind{make(chan *lock, 1)}
	if err := conn.Export(l, "/org/freedesktop/login1", "org.freedesktop.login1.Manager"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName("org.freedesktop.login1", 0); err != nil {
		t.Fatal(err)
	}
	return conn, l
}

// bus starts a D-Bus daemon that takes the place of the system's bus until the test ends.
func bus(t *testing.T) {
	t.Helper()
	daemon, err := exec.LookPath("dbus-daemon")
	if err != nil {
		t.Skip("dbus-daemon is missing")
	}
	config := filepath.Join(t.TempDir(), "bus.conf")
	text := `<busconfig><type>system</type><listen>unix:dir=` + t.TempDir() + `</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(daemon, "--config-file="+config, "--nofork", "--print-address")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", strings.TrimSpace(address))
}

func TestMachineStaysAwakeByLogind(t *testing.T) {
	bus(t)
	if _, err := Hold("test"); err == nil {
		t.Fatal("Hold returns no error without logind; want one")
	}
	_, l := serveLogind(t)
	release, err := Hold("a coding agent works")
	if err != nil {
		t.Fatal(err)
	}
	lock := l.next()
	lock.handedOver(t)
	if lock.what != "idle" || lock.who != "host-agent" || lock.mode != "block" {
		t.Errorf("Inhibit(%q, %q, %q); want idle, host-agent, block", lock.what, lock.who, lock.mode)
	}
	if lock.isReleased() {
		t.Fatal("the inhibitor is released before release is called; want it held")
	}
	release()
	<-lock.released
}

// TestSleepIsAnnounced makes logind announce twice that the machine sleeps and wakes. Watch must
// call the function each time, and hold an inhibitor until the call for sleep has returned.
func TestSleepIsAnnounced(t *testing.T) {
	bus(t)
	conn, l := serveLogind(t)
	calls, proceed, ended := make(chan bool), make(chan bool), make(chan error, 1)
	ctx, stop := context.WithCancel(t.Context())
	go func() { ended <- Watch(ctx, func(asleep bool) { calls <- asleep; <-proceed }) }()
	for range 2 {
		lock := l.next()
		if lock.what != "sleep" || lock.mode != "delay" {
			t.Errorf("Inhibit(%q, %q); want sleep, delay", lock.what, lock.mode)
		}
		for _, asleep := range []bool{true, false} {
			if err := conn.Emit("/org/freedesktop/login1", "org.freedesktop.login1.Manager.PrepareForSleep", asleep); err != nil {
				t.Fatal(err)
			}
			if got := <-calls; got != asleep {
				t.Fatalf("sleeping(%v); want %v", got, asleep)
			}
			if asleep {
				lock.handedOver(t)
				if lock.isReleased() {
					t.Error("the sleep lock is released before the announcement; want it held")
				}
			}
			proceed <- true
			if asleep {
				<-lock.released // released, so the machine may sleep
			}
		}
	}
	last := l.next()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	last.handedOver(t)
}

// A slowLogind reports each call of Inhibit, and answers when hold is closed.
type slowLogind struct {
	called chan bool
	hold   chan struct{}
}

func (l slowLogind) Inhibit(_, _, _, _ string) (dbus.UnixFD, *dbus.Error) {
	l.called <- true
	<-l.hold
	return 0, dbus.MakeFailedError(os.ErrClosed)
}

// TestStopDuringACallIsNoError stops Watch while logind has not answered it.
func TestStopDuringACallIsNoError(t *testing.T) {
	bus(t)
	conn, err := dbus.ConnectSystemBus()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l := slowLogind{make(chan bool, 1), make(chan struct{})}
	defer close(l.hold)
	if err := conn.Export(l, loginPath, loginManager); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName(loginName, 0); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Watch(ctx, func(bool) {}) }()
	<-l.called
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestPowerSupplyIsRecognised(t *testing.T) {
	defer func(was string) { supplies = was }(supplies)
	for name, c := range map[string]struct {
		files map[string]string
		want  bool
	}{
		"desktop":               {nil, true},
		"laptop on mains":       {map[string]string{"AC/type": "Mains", "AC/online": "1", "BAT0/type": "Battery"}, true},
		"laptop on battery":     {map[string]string{"AC/type": "Mains", "AC/online": "0", "BAT0/type": "Battery"}, false},
		"laptop by USB":         {map[string]string{"AC/type": "Mains", "AC/online": "0", "ucsi/type": "USB", "ucsi/online": "1", "BAT0/type": "Battery"}, true},
		"desktop and its mouse": {map[string]string{"hid/type": "Battery", "hid/scope": "Device"}, true},
	} {
		supplies = t.TempDir()
		for path, text := range c.files {
			path = filepath.Join(supplies, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := Mains(); got != c.want {
			t.Errorf("%s: %v; want %v", name, got, c.want)
		}
	}
}
