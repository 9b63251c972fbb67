// Package cli holds the commands' common parts, such as flags with values from the
// environment and a YAML file, logging, services and shell completion.
package cli

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// Version is this program's version.
const Version = "1.0.0-rc.1"

// commit is set by make release. The go command knows the commit in some working trees
// only.
var commit string

// BuildVersion returns the version, and the commit if it is known.
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
	Config    kong.ConfigFlag  `help:"YAML file with flag values: each key is a flag's name." type:"path" placeholder:"FILE"`
	LogLevel  slog.Level       `help:"Lowest level to log: debug, info, warn or error." default:"info"`
	LogFormat string           `help:"Log format: text or json." enum:"text,json" default:"text"`
	CAFile    string           `help:"PEM file with the certificates of a private CA, trusted for connections to relays and NATS; like SSL_CERT_FILE. Only on Linux and BSD; elsewhere, add them to the system's store." type:"path" placeholder:"FILE" name:"ca-file"`
	Version   kong.VersionFlag `help:"Print the version and exit." env:"-"`
}

// Logger returns a logger configured by the flags.
func (c *Common) Logger(w io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// trust makes this process, and those that it starts, accept the authorities in
// --ca-file. It is called before the first connection: Go reads the system's authorities
// once.
func (c *Common) trust() error {
	if c.CAFile == "" {
		return nil
	}
	text, err := os.ReadFile(c.CAFile)
	if err != nil {
		return fmt.Errorf("--ca-file: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(text) {
		return fmt.Errorf("--ca-file %s: no certificate in PEM in it", c.CAFile)
	}
	switch runtime.GOOS {
	case "windows", "darwin", "ios":
		return fmt.Errorf("--ca-file: %s uses the system's authorities only; add the certificate there", runtime.GOOS)
	}
	return os.Setenv("SSL_CERT_FILE", c.CAFile)
}

// Ended reports why a command has ended: as a log line with --log-format json, so that
// log readers need nothing else, or as text.
func (c *Common) Ended(w io.Writer, name string, err error) {
	if c.LogFormat == "json" {
		c.Logger(w).Error("ended", "command", name, "error", err.Error())
		return
	}
	fmt.Fprintln(w, name+":", Printable(strings.TrimPrefix(err.Error(), name+": ")))
}

// Printable replaces control characters other than ends of lines in a text for a terminal. A relay's text may contain them.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
}

// Args returns the flags that make a child process log like this one.
func (c *Common) Args() []string {
	return []string{"--log-format", c.LogFormat, "--log-level", c.LogLevel.String()}
}

// FrameLimit is a flag for the longest message, in bytes.
type FrameLimit struct {
	MaxFrame int `help:"Longest message, in bytes. Default: 134217728, or about a quarter of --max-queued if that is less." least:"65536" placeholder:"BYTES"` // initialize and its answer need this much
}

// A Program describes a command with its flags and subcommands.
type Program struct {
	App         any // a struct of flags and commands
	Name        string
	Description string
	Prefix      string // of environment variables
	Options     []kong.Option
}

// exit is kong's exit code for a finished command, such as --help.
type exit int

// parser returns the parser for the program's command lines.
func (p Program) parser(stdout, stderr io.Writer) (*kong.Kong, error) {
	return kong.New(p.App, append(p.Options,
		kong.Name(p.Name), kong.Description(p.Description),
		kong.DefaultEnvars(p.Prefix),
		kong.Configuration(loadYAML),
		kong.NamedMapper("path", kong.MapperFunc(readPath)),
		kong.NamedMapper("path or off", kong.MapperFunc(readPathOrOff)),
		kong.Vars{"version": p.Name + " " + BuildVersion()},
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
	)...)
}

// Model returns the program's flags and commands. It reads nothing from the environment.
func (p Program) Model() (*kong.Application, error) {
	parser, err := p.parser(io.Discard, io.Discard)
	if err != nil {
		return nil, err
	}
	return parser.Model, nil
}

var paths = kong.NewRegistry().RegisterDefaults()

// readPath reads a path or a list of paths like kong, but refuses an empty path, which kong takes for the working directory. A
// shell makes an empty argument of a variable that is not set. Kong does not expand the paths in a file's list.
func readPath(from *kong.DecodeContext, to reflect.Value) error {
	switch value := from.Scan.Peek().Value.(type) {
	case string:
		if value == "" && !from.Value.HasDefault || to.Kind() == reflect.Slice && slices.Contains(kong.SplitEscaped(value, from.Value.Tag.Sep), "") {
			return errEmptyPath
		}
	case []any:
		for i, element := range value {
			path, ok := element.(string)
			if ok && path == "" {
				return errEmptyPath
			}
			if ok {
				value[i] = kong.ExpandPath(path)
			}
		}
	}
	return paths.ForNamedValue("path", to).Decode(from, to)
}

// readPathOrOff reads a path like readPath, or the word off.
func readPathOrOff(from *kong.DecodeContext, to reflect.Value) error {
	if from.Scan.Peek().Value != "off" {
		return readPath(from, to)
	}
	from.Scan.Pop()
	to.SetString("off")
	return nil
}

var errEmptyPath = errors.New("the path is empty: leave the flag or variable out, or give . for the working directory")

// Parse reads a command line into the program's flags. Flags that are not set take
// their values from the environment (PREFIX_FLAG_NAME) and the --config file. It
// returns nil for a finished command, such as --help.
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
	if err == nil {
		err = checkBounds(parsed.Flags())
	}
	if err == nil {
		return parsed, nil
	}
	notes := ""
	for _, note := range p.mistyped(parser.Model.Node, os.Environ()) {
		notes += "; " + note
	}
	if at, ok := errors.AsType[*kong.ParseError](err); ok {
		parsed = at.Context
	}
	command := p.Name
	if parsed != nil && parsed.Selected() != nil {
		command = parsed.Selected().FullPath()
	}
	return nil, fmt.Errorf("%s (see %s --help)%s", sensible(err.Error()), command, notes)
}

// Start parses a command line like Parse, and prepares this process for the command: it
// accepts the authorities in --ca-file, and logs variables that only look like settings.
func (p Program) Start(ctx context.Context, flags *Common, args []string, stdout, stderr io.Writer) (*kong.Context, *slog.Logger, error) {
	parsed, err := p.Parse(args, stdout, stderr)
	if parsed == nil || err != nil {
		return nil, nil, err
	}
	if err := flags.trust(); err != nil {
		return nil, nil, err
	}
	log := flags.Logger(stderr)
	for _, note := range p.mistyped(parsed.Model.Node, os.Environ()) {
		log.Warn("environment variable ignored", "reason", note)
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	return parsed, log, nil
}

// loadYAML returns a resolver for the flags in a YAML file.
func loadYAML(r io.Reader) (kong.Resolver, error) {
	file := yamlFile{name: nameOf(r), values: map[string]any{}}
	var node, second yaml.Node
	reader := yaml.NewDecoder(r)
	err := reader.Decode(&node)
	if err == nil {
		err = node.Decode(&file.values)
	}
	if err == nil && reader.Decode(&second) != io.EOF {
		err = errors.New("--- begins a second document")
	}
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s is not YAML of the form \"flag: value\": %w", file.name, err)
	}
	if len(node.Content) == 1 {
		file.keys = node.Content[0].Content
	}
	return file, nil
}

func nameOf(r io.Reader) string {
	if file, ok := r.(interface{ Name() string }); ok {
		return file.Name()
	}
	return "the configuration"
}

// yamlFile holds flags' values from a YAML file.
type yamlFile struct {
	name   string
	values map[string]any
	keys   []*yaml.Node // keys and values, alternating
}

// Validate refuses keys that match no flag of any command.
func (y yamlFile) Validate(app *kong.Application) error {
	known := flagNames(app.Node)
	var unknown []string
	for i := 0; i < len(y.keys); i += 2 {
		if key := y.keys[i]; !slices.Contains(known, key.Value) {
			unknown = append(unknown, fmt.Sprintf("%s, line %d: unknown flag %s%s", y.name, key.Line, key.Value, suggestion(key.Value, known)))
		}
	}
	if len(unknown) > 0 {
		return errors.New(strings.Join(unknown, "; "))
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

// Resolve implements [kong.Resolver]. A variable of the environment has priority over the file. Texts and times are as they are
// written in the file: YAML reads 1.10 as a number, and kong reads the number 15 as nanoseconds.
func (y yamlFile) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	value := y.values[flag.Name]
	if value == nil || slices.ContainsFunc(flag.Envs, isSet) {
		return nil, nil
	}
	to, node := flag.Target.Type(), y.node(flag.Name)
	list := to.Kind() == reflect.Slice && to.Elem().Kind() == reflect.String
	switch {
	case node == nil:
		return value, nil
	case to.Kind() == reflect.Map:
		return value, y.checkMap(node, to.Elem().Kind())
	case to.Kind() == reflect.Int && isFraction(value): // kong would round it
		return nil, fmt.Errorf("%s, line %d: want a whole number", y.name, node.Line)
	case !list && to.Kind() != reflect.String && to != reflect.TypeFor[time.Duration]():
		return value, nil
	}
	if !list || node.Kind != yaml.SequenceNode {
		return y.text(node)
	}
	var texts []any
	for _, item := range node.Content {
		text, err := y.text(item)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// checkMap refuses a value that is neither a text nor a mapping from names to single values of a kind.
func (y yamlFile) checkMap(node *yaml.Node, kind reflect.Kind) error {
	if node.Kind == yaml.ScalarNode && node.Tag == "!!str" {
		return nil // as on the command line
	}
	tag, want := "!!str", "NAME: TEXT"
	if kind == reflect.Int {
		tag, want = "!!int", "NAME: NUMBER"
	}
	bad := node.Kind != yaml.MappingNode
	for i := 1; i < len(node.Content) && !bad; i += 2 {
		bad = named(node.Content[i]).Tag != tag
	}
	if bad {
		return fmt.Errorf("%s, line %d: want {%s, …}", y.name, node.Line, want)
	}
	return nil
}

func isFraction(value any) bool {
	number, ok := value.(float64)
	return ok && number != math.Trunc(number)
}

// node returns a key's value, or nil if the key is part of an alias.
func (y yamlFile) node(key string) *yaml.Node {
	for i := 0; i+1 < len(y.keys); i += 2 {
		if y.keys[i].Value == key {
			return named(y.keys[i+1])
		}
	}
	return nil
}

// named returns the node that an alias names, or the node itself.
func named(node *yaml.Node) *yaml.Node {
	if node.Kind == yaml.AliasNode {
		return node.Alias
	}
	return node
}

func (y yamlFile) text(node *yaml.Node) (string, error) {
	if node = named(node); node.Kind != yaml.ScalarNode {
		return "", fmt.Errorf("%s, line %d: want a single value", y.name, node.Line)
	}
	return node.Value, nil
}

func isSet(variable string) bool {
	_, is := os.LookupEnv(variable)
	return is
}
