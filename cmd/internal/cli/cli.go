// Package cli is what the commands have in common: flags that may also stand
// in the environment and in a YAML file, logging, and the version.
package cli

import (
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"slices"
	"sort"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// Version is the version of this program.
const Version = "0.1.0"

// commit is what make release builds from: the go command knows it only in some
// working trees.
var commit string

// BuildVersion returns the version, and the commit it was built from if that
// is known.
func BuildVersion() string {
	if commit != "" {
		return Version + "+" + commit
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 8 {
			return Version + "+" + s.Value[:8]
		}
	}
	return Version
}

// Common are the flags of every command.
type Common struct {
	Config    kong.ConfigFlag  `help:"YAML file with values for flags: a key is the name of a flag." placeholder:"FILE"`
	LogLevel  slog.Level       `help:"Least level that is logged: debug, info, warn or error." default:"info"`
	LogFormat string           `help:"Form of log lines: text or json." enum:"text,json" default:"text"`
	Version   kong.VersionFlag `help:"Print the version and exit."`
}

// Logger returns a logger as the flags say.
func (c *Common) Logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// Ended reports why a command has ended: with --log-format json as a line of the
// log, so that whoever reads it needs to read nothing else, and else as text.
func (c *Common) Ended(w io.Writer, name string, err error) {
	if c.LogFormat == "json" {
		c.Logger(w).Error("ended", "command", name, "error", err.Error())
		return
	}
	fmt.Fprintln(w, name+":", strings.TrimPrefix(err.Error(), name+": "))
}

// Args are the flags that have another process log as this one.
func (c *Common) Args() []string {
	return []string{"--log-format", c.LogFormat, "--log-level", c.LogLevel.String()}
}

// MinFrame is the least limit of a message's length that makes sense, in
// bytes: initialize and its answer take that much.
const MinFrame = 64 << 10

// FrameLimit is a flag for the longest message, in bytes.
type FrameLimit struct {
	MaxFrame int `help:"Longest message, in bytes. Default: 134217728, or less where four of them would not fit into --max-queued." placeholder:"BYTES"`
}

// Validate reports a limit that is too small to work with.
func (f *FrameLimit) Validate() error {
	if f.MaxFrame != 0 && f.MaxFrame < MinFrame {
		return fmt.Errorf("--max-frame is %d bytes; want at least %d", f.MaxFrame, MinFrame)
	}
	return nil
}

// A Program is a command as its flags and subcommands describe it.
type Program struct {
	App         any // whose fields are flags and commands
	Name        string
	Description string
	Prefix      string // of variables in the environment
	Options     []kong.Option
}

// exit is how kong ends a command that has nothing more to do, such as --help.
type exit int

// parser returns what reads the program's command lines.
func (p Program) parser(stdout, stderr io.Writer) (*kong.Kong, error) {
	return kong.New(p.App, append(p.Options,
		kong.Name(p.Name), kong.Description(p.Description),
		kong.DefaultEnvars(p.Prefix),
		kong.Configuration(loadYAML),
		kong.Vars{"version": p.Name + " " + BuildVersion()},
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)...)
}

// Parse reads a command line into the flags of the program, whose unset ones it
// takes from the environment (PREFIX_FLAG_NAME) and from the file that --config
// names. It returns nil when the command is done already, as with --help.
func (p Program) Parse(args []string, stdout, stderr io.Writer) (parsed *kong.Context, err error) {
	parser, err := p.parser(stdout, stderr)
	if err != nil {
		return nil, err
	}
	defer func() {
		if code, ok := recover().(exit); ok && code == 0 {
			parsed, err = nil, nil
		} else if ok {
			err = fmt.Errorf("exit status %d", code)
		}
	}()
	parsed, err = parser.Parse(args)
	if err != nil {
		return nil, fmt.Errorf("%w (see %s --help)", err, p.Name)
	}
	return parsed, nil
}

// loadYAML makes the values of a YAML file those of flags.
func loadYAML(r io.Reader) (kong.Resolver, error) {
	values := map[string]any{}
	if err := yaml.NewDecoder(r).Decode(&values); err != nil && err != io.EOF {
		return nil, fmt.Errorf("not YAML of the form \"flag: value\": %w", err)
	}
	return yamlFile(values), nil
}

// yamlFile is a [kong.Resolver].
type yamlFile map[string]any

// Validate refuses keys that no command has a flag for.
func (y yamlFile) Validate(app *kong.Application) error {
	known := flagNames(app.Node)
	var unknown []string
	for key := range y {
		if !slices.Contains(known, key) {
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 {
		sort.Strings(unknown)
		return fmt.Errorf("configuration file: no flag is called %s", strings.Join(unknown, ", "))
	}
	return nil
}

func flagNames(n *kong.Node) (names []string) {
	for _, f := range n.Flags {
		names = append(names, f.Name)
	}
	for _, c := range n.Children {
		names = append(names, flagNames(c)...)
	}
	return names
}

// Resolve implements [kong.Resolver].
func (y yamlFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	value, ok := y[flag.Name]
	if !ok {
		return nil, nil
	}
	return value, nil
}
