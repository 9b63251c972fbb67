package awake

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"
)

// logind stands for systemd-logind: it gives the write end of a pipe, and the lock
// ends when all copies are closed.
type logind struct {
	what, who, mode string
	read            *os.File
	copy            int // of the lock, which logind's own reply closes
}

func (l *logind) Inhibit(what, who, _, mode string) (dbus.UnixFD, *dbus.Error) {
	read, write, err := os.Pipe()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.what, l.who, l.mode, l.read = what, who, mode, read
	fd, err := syscall.Dup(int(write.Fd()))
	_ = write.Close()
	if err != nil {
		return 0, dbus.MakeFailedError(err)
	}
	l.copy = fd
	return dbus.UnixFD(fd), nil
}

// bus starts a private D-Bus daemon as the system's bus.
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

func TestLogind(t *testing.T) {
	bus(t)
	if _, err := Hold("test"); err == nil {
		t.Fatal("held without logind")
	}
	conn, err := dbus.ConnectSystemBus()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	l := &logind{}
	if err := conn.Export(l, "/org/freedesktop/login1", "org.freedesktop.login1.Manager"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName("org.freedesktop.login1", 0); err != nil {
		t.Fatal(err)
	}
	release, err := Hold("a coding agent works")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Close(l.copy); err != nil {
		t.Fatal(err)
	}
	if l.what != "idle" || l.who != "host-agent" || l.mode != "block" {
		t.Errorf("Inhibit(%q, %q, %q)", l.what, l.who, l.mode)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = l.read.Read(make([]byte, 1)) // ends when no copy of the lock is open
	}()
	select {
	case <-ended:
		t.Fatal("the lock ended before its release")
	default:
	}
	release()
	<-ended
}

func TestMains(t *testing.T) {
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
