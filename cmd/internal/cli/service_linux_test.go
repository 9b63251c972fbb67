package cli

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"
)

// TestProgramThatSystemdRefuses checks paths of programs. systemd installs a unit with a quotation mark or a backslash in the
// program's path, and refuses to start it.
func TestProgramThatSystemdRefuses(t *testing.T) {
	for _, path := range []string{"/home/o'brien/host-agent", `/a"b/host-agent`, `/a\b/host-agent`} {
		if err := checkProgram(path); err == nil || !strings.Contains(err.Error(), "move "+path) {
			t.Errorf("%s: %v; want an error that names the remedy", path, err)
		}
	}
	if err := checkProgram("/home/ada 100%/é/host-agent"); err != nil {
		t.Errorf("a path that systemd accepts: %v; want no error", err)
	}
}

// TestMachineServiceReadsItsConfigurationWhereItWasInstalled compares the working directories in units. Relative paths in a
// configuration file count from there. A machine service without a file has none.
func TestMachineServiceReadsItsConfigurationWhereItWasInstalled(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args   string
		system bool
		want   string
	}{
		{"up https://relay.example.com", false, home},
		{"up https://relay.example.com --config /etc/x.yaml", false, here},
		{"up https://relay.example.com", true, ""},
		{"up --config=/etc/x.yaml https://relay.example.com", true, here},
		{"up https://relay.example.com -- agent --config x", true, ""},
	} {
		if got, err := ServiceDirectory(strings.Fields(test.args), test.system); err != nil || got != test.want {
			t.Errorf("the service of %s, for the machine: %v, has the directory %q, %v; want %q", test.args, test.system, got, err, test.want)
		}
	}
}

// TestServiceHasTheStateDirectoryOfItsUser sets XDG_STATE_HOME for install. The service of the same user must find the same sessions
// there. A machine service has a user of its own.
func TestServiceHasTheStateDirectoryOfItsUser(t *testing.T) {
	t.Setenv("XDG_STATE_HOME", "/srv/state")
	own, machine := &Service{}, &Service{System: true}
	own.withVariables()
	machine.withVariables()
	if got := own.Env["XDG_STATE_HOME"] + " " + machine.Env["XDG_STATE_HOME"]; got != "/srv/state " {
		t.Errorf("XDG_STATE_HOME of a user's service, and of a machine's: %q; want /srv/state, and none", got)
	}
}

// TestServiceGetsNoPassword sets variables with passwords for install. Every reader of the service's settings would see them.
func TestServiceGetsNoPassword(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://ada:secret@proxy.example.com")
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "https://ada:secret@collector.example.com")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://collector.example.com")
	s := &Service{}
	note := s.withVariables()
	for _, name := range []string{"HTTPS_PROXY", "OTEL_EXPORTER_OTLP_ENDPOINT"} {
		if s.Env[name] != "" || !strings.Contains(note, "does not get "+name) {
			t.Errorf("%s of the service is %q, and the note %q; want none, and a note", name, s.Env[name], note)
		}
	}
	if s.Env["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] == "" {
		t.Error("the service does not get the address of the collector without a password; want it")
	}
}

// TestServiceFindsTheCertificates sets SSL_CERT_FILE to a relative path, which counts from the folder of install.
func TestServiceFindsTheCertificates(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SSL_CERT_FILE", "ca.pem")
	t.Setenv("SSL_CERT_DIR", "certs:/etc/ssl/certs")
	s := &Service{}
	s.withVariables()
	if got, want := s.Env["SSL_CERT_FILE"]+" "+s.Env["SSL_CERT_DIR"], here+"/ca.pem "+here+"/certs:/etc/ssl/certs"; got != want {
		t.Errorf("SSL_CERT_FILE and SSL_CERT_DIR of the service are %s; want %s", got, want)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY"} {
		t.Setenv(name, "otel.pem")
		s.withVariables()
		if got, want := s.Env[name], here+"/otel.pem"; got != want {
			t.Errorf("%s of the service is %s; want %s", name, got, want)
		}
	}
}

// TestMachineServiceNeedsItsUsersAccess checks a machine service of a user that cannot start the program, and of one that cannot read a
// file of the service. systemd would report both in its log only.
func TestMachineServiceNeedsItsUsersAccess(t *testing.T) {
	if os.Geteuid() != 0 || refused("nobody", "-x", os.TempDir()) {
		t.Skip("only root can try the access of another user")
	}
	dir := t.TempDir()
	program, file := filepath.Join(dir, "host-agent"), filepath.Join(dir, "token")
	err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.WriteFile(program, nil, 0o755), os.WriteFile(file, nil, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	s := &Service{System: true, User: "nobody"}
	check := func(when, want string) {
		t.Helper()
		if err := s.checkUser(program); fmt.Sprint(err) != want && (err == nil || want == "<nil>" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v; want %q", when, err, want)
		}
	}
	check("a program that everyone can start", "<nil>")
	s.Files = []string{file}
	check("a file of root", "the user nobody cannot read "+file)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	check("a program in a private directory", "the user nobody cannot start "+program)
	s.User = "of-a-directory-service"
	check("a user that is not in /etc/passwd", "<nil>")
}

// TestServiceCanWriteItsLog compares the directories of launchd's logs. The user of a machine service cannot write to /var/log, and
// launchd would not start the service.
func TestServiceCanWriteItsLog(t *testing.T) {
	t.Setenv("HOME", "/Users/ada")
	nobody, err := user.Lookup("nobody")
	if err != nil {
		t.Skip(err)
	}
	for want, s := range map[string]*Service{
		"/Users/ada/Library/Logs":        {},
		nobody.HomeDir + "/Library/Logs": {System: true, User: "nobody"},
		"":                               {System: true, User: "of-a-directory-service"},
	} {
		if got := s.logs(); got != want {
			t.Errorf("the log of a service for the machine: %v, of the user %q is in %q; want %q", s.System, s.User, got, want)
		}
	}
}
