package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMaskHidesSecretsOnly masks texts with and without secrets. Only the secrets must
// be hidden.
func TestMaskHidesSecretsOnly(t *testing.T) {
	for text, want := range map[string]string{
		"127.0.0.1:8484": "127.0.0.1:8484", "/etc/ahp-relay/token.txt": "/etc/ahp-relay/token.txt", "": "",
		"nats://a:b@one,nats://c@two":                                            "nats://***@one,nats://***@two",
		"smtp://ada:it's@home@mail.example.com:587":                              "smtp://***@mail.example.com:587",
		"https://hooks.example.com/a?b=c":                                        "https://hooks.example.com/a?***",
		"tkn=abc&x=1 access_token=d":                                             "tkn=***&x=1 access_token=***",
		`{"client_secret": "a\"b", "c":1}`:                                       `{"client_secret": "***", "c":1}`,
		"Authorization: Bearer abc.def":                                          "Authorization: Bearer ***",
		"eyJhbGciOiJFZERTQSJ9.eyJzdWIi.c":                                        "***",
		"-----BEGIN PRIVATE KEY-----\nMC4C\n-----END PRIVATE KEY-----\nx":        "***\nx",
		"seed SUAGMJH5XLGZKQQWAWKRZJIGMOU4HPFUYLXJMXOO5NLFEO2OOQJ5LPRDPM of joe": "seed *** of joe",
		"https://relay.example.com/s#abcdef here":                                "https://relay.example.com/s#*** here",
	} {
		if got := Mask(text); got != want {
			t.Errorf("Mask(%q) = %q; want %q", text, got, want)
		}
	}
}

// TestSettingsShowNoSecrets lists a command's settings. The list must have all flags
// with their values, and no secret.
func TestSettingsShowNoSecrets(t *testing.T) {
	var app struct {
		Common
		Serve struct {
			Listen string   `default:"127.0.0.1:1"`
			URLs   []string `name:"urls"`
			N      int
			Odd    map[string]string
			Other  map[string]string
		} `cmd:""`
		Rest struct{ X string } `cmd:""`
	}
	var out bytes.Buffer
	parsed, err := Program{App: &app, Name: "toy", Prefix: "TOY"}.Parse([]string{"serve", "--urls", "nats://a:b@c,d", "--odd", "password=x", "--n", "3"}, &out, &out)
	if err != nil {
		t.Fatal(err)
	}
	got := Settings(parsed)
	want := map[string]string{"listen": "127.0.0.1:1", "urls": "nats://***@c, d", "n": "3", "odd": "set", "other": "", "log-format": "text", "log-level": "INFO", "config": "", "ca-file": ""}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %q; want %q", name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("got %v; want %v", got, want)
	}
}

// TestEndIsALineOfTheLog ends a program with an error. The error must be a line in the
// log's format, and child processes must use the same format.
func TestEndIsALineOfTheLog(t *testing.T) {
	var out bytes.Buffer
	(&Common{LogFormat: "text"}).Ended(&out, "relay", errors.New("relay: no \"keys\""))
	if got := out.String(); got != "relay: no \"keys\"\n" {
		t.Errorf("the line in text form is %q; want the error alone", got)
	}
	out.Reset()
	(&Common{LogFormat: "text"}).Ended(&out, "relay", errors.New("refused: \x1b[2Jäöü\u202e\x07\nand more"))
	if got := out.String(); got != "relay: refused: \uFFFD[2Jäöü\uFFFD\uFFFD\nand more\n" {
		t.Errorf("an error with control characters gives %q; want none of them on the terminal", got)
	}
	out.Reset()
	c := &Common{LogFormat: "json", LogLevel: slog.LevelDebug}
	c.Ended(&out, "relay", errors.New("no \"keys\""))
	var line struct{ Level, Msg, Command, Error string }
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line.Level != "ERROR" || line.Command != "relay" || line.Error != `no "keys"` {
		t.Errorf("the line in JSON form is %s, %v; want the level, the command and the error", out.String(), err)
	}
	if args := c.Args(); !slices.Equal(args, []string{"--log-format", "json", "--log-level", "DEBUG"}) {
		t.Errorf("Args = %q; want the flags --log-format and --log-level", args)
	}
}

// TestEmptyPathIsRefused gives an empty path as an argument, in a list, in the environment and in a configuration
// file. A path that is not empty becomes absolute.
func TestEmptyPathIsRefused(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	parse := func(args ...string) (string, error) {
		var app struct {
			Common
			Dir    string   `type:"path"`
			Folder []string `type:"path"`
		}
		_, err := Program{App: &app, Name: "toy", Prefix: "TOY"}.Parse(args, io.Discard, io.Discard)
		return strings.Join(append(app.Folder, app.Dir), " "), err
	}
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "file.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, args := range [][]string{{"--dir", ""}, {"--dir="}, {"--folder", ""}, {"--folder", ",a"}, {"--folder", "a,,b"}, {"--config", ""}, {"--config", file(`dir: ""`)}, {"--config", file(`folder: [""]`)}} {
		if got, err := parse(args...); err == nil || !strings.Contains(err.Error(), "the path is empty") {
			t.Errorf("%q gives %q, %v; want that the path is empty", args, got, err)
		}
	}
	for _, args := range [][]string{{"--dir", ".", "--folder", "a,b"}, {"--config", file("dir: .\nfolder: [a, b]")}} {
		if got, err := parse(args...); err != nil || got != here+"/a "+here+"/b "+here {
			t.Errorf("relative paths in %q give %q, %v; want absolute ones", args, got, err)
		}
	}
	t.Setenv("TOY_DIR", "")
	if got, err := parse(); err == nil || !strings.Contains(err.Error(), "the path is empty") {
		t.Errorf("an empty variable gives %q, %v; want that the path is empty", got, err)
	}
}

// TestPathMayBeOff sets a flag for a path or the word off.
func TestPathMayBeOff(t *testing.T) {
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(file, []byte("keep: ~/state\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{"": "", "--keep off": "off", "--keep=off": "off", "--keep /a": "/a", "--config " + file: home + "/state", "--keep=": "the path is empty"} {
		var app struct {
			Common
			Keep string `type:"path or off"`
		}
		_, err := Program{App: &app, Name: "toy", Prefix: "TOY"}.Parse(strings.Fields(args), io.Discard, io.Discard)
		if got := app.Keep; err == nil && got != want || err != nil && (want == "" || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q gives %q, %v; want %q", args, got, err, want)
		}
	}
}

// TestEnvironmentHasPriorityOverTheFile sets flags in a configuration file, in the environment and in the command
// line. The command line has priority over the environment, and the environment over the file.
func TestEnvironmentHasPriorityOverTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prog.yaml")
	if err := os.WriteFile(file, []byte("all: file\nboth: file\nown: file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AHP_PROG_ALL", "environment")
	t.Setenv("AHP_PROG_BOTH", "environment")
	app := &struct {
		Common
		All, Both, Own string
	}{}
	p := Program{App: app, Name: "prog", Prefix: "AHP_PROG"}
	if _, err := p.Parse([]string{"--config", file, "--all", "command line"}, io.Discard, io.Discard); err != nil {
		t.Fatal(err)
	}
	if app.All != "command line" || app.Both != "environment" || app.Own != "file" {
		t.Errorf("the flags are from the %s, the %s and the %s; want the command line, the environment and the file", app.All, app.Both, app.Own)
	}
}

// TestFileHasTextsAsWritten sets texts, lists of texts and times in a configuration file. A number there is the same text as on
// the command line, so a time needs a unit.
func TestFileHasTextsAsWritten(t *testing.T) {
	for text, want := range map[string]string{
		"zone: 1.10": "{1.10 [] 0s ", "zone: \"1\"": "{1 [] 0s ", "zone:": "{ [] 0s ", "log-format: json\nport: zone\nzone: 3": "{3 [zone] 0s ", "port: [80, 443-445]": "{ [80 443-445] 0s ", "port: 80": "{ [80] 0s ", "port: a,b": "{ [a b] 0s ",
		"ping: 0": "{ [] 0s ", "ping: 1m": "{ [] 1m0s ", "a: &a 7\nzone: *a": "unknown flag a",
		"limit: {a: 1, b: 2}": "map[a:1 b:2]", "limit: a=1,b=2": "map[a:1 b:2]", "size: 1_000": "1000 map", "size: 1e3": "1000 map", "zone: x\n---\n": "second document", "zone: a\n---\nzone: b": "second document", "---\nzone: a": "{a ",
		"limit: 5": "line 1: want {NAME: NUMBER, …}", "limit: [a=1]": "line 1: want {NAME: NUMBER", "port: 80\nlimit: {a: many}": "line 2: want {NAME: NUMBER", "limit: {a: [1]}": "want {NAME: NUMBER", "run: {a: [b]}": "line 1: want {NAME: TEXT", "size: 3.7": "line 1: want a whole number",
		"ping: 15": "missing unit", "zone: [1]": "line 1: want a single value", "port: [[1]]": "line 1: want a single value",
	} {
		file := filepath.Join(t.TempDir(), "prog.yaml")
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var app struct {
			Common
			Flags struct {
				Zone string
				Port []string
				Ping time.Duration

				Size  int
				Limit map[string]int `mapsep:","`
				Run   map[string]string
			} `embed:""`
		}
		got := ""
		if _, err := (Program{App: &app, Name: "prog", Prefix: "AHP_PROG"}).Parse([]string{"--config", file}, io.Discard, io.Discard); err != nil {
			got = err.Error()
		} else {
			got = fmt.Sprint(app.Flags)
		}
		if !strings.Contains(got, want) {
			t.Errorf("%q gives %s; want %s", text, got, want)
		}
	}
}

// TestFileMayRepeatAList sets two lists in a configuration file, the second by an alias of the first.
func TestFileMayRepeatAList(t *testing.T) {
	file := filepath.Join(t.TempDir(), "prog.yaml")
	if err := os.WriteFile(file, []byte("first: &hosts [a, b]\nsecond: *hosts\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var app struct {
		Common
		Flags struct{ First, Second []string } `embed:""`
	}
	_, err := (Program{App: &app, Name: "prog", Prefix: "AHP_PROG"}).Parse([]string{"--config", file}, io.Discard, io.Discard)
	if got := fmt.Sprint(app.Flags); err != nil || got != "{[a b] [a b]}" {
		t.Errorf("the lists are %s, %v; want a and b twice", got, err)
	}
}

// TestBoundsOfFlags sets flags below their bounds, and flags that have no effect alone, in the command line, the environment and a file.
func TestBoundsOfFlags(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "file.yaml")
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, test := range []struct{ args, env, want string }{
		{args: "serve"}, {args: "serve --pause 1s --size 1"}, {args: "serve --size 0"}, {args: "serve --mail a@b --name x"}, {args: "serve --mail a@b --other"},
		{args: "other", env: "0s"},
		{args: "serve --pause 0s", want: "--pause is 0s; want at least 1s (see toy serve --help)"},
		{args: "serve --pause=-1m", want: "--pause is -1m0s; want at least 1s"},
		{args: "serve --size 9", want: "--size is 9; want at most 8"}, {args: "serve --size=-1", want: "--size is -1; want at least 1"},
		{args: "serve", env: "0s", want: "--pause is 0s"},
		{args: "serve --config " + file("pause: 999ms"), want: "--pause is 999ms"},
		{args: "serve --mail a@b", want: "--mail has no effect without --name or --other"},
		{args: "serve --config " + file("mail: a@b"), want: "--mail has no effect"},
	} {
		var app struct {
			Common
			Serve struct {
				Pause time.Duration `default:"2s" least:"1s"`
				Size  int           `least:"1" most:"8"`
				Mail  string        `with:"name,other"`
				Name  string
				Other bool
			} `cmd:""`
			Other struct{} `cmd:""`
		}
		t.Run(test.args+test.env, func(t *testing.T) {
			if test.env != "" {
				t.Setenv("TOY_PAUSE", test.env)
			}
			_, err := Program{App: &app, Name: "toy", Prefix: "TOY"}.Parse(strings.Fields(test.args), io.Discard, io.Discard)
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("Parse = %v; want %q", err, test.want)
			}
		})
	}
}
