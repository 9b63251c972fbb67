package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Model returns the flags for references, manual pages and completion. It reads
// nothing from the environment.
func (p Program) Model() (*kong.Application, error) {
	parser, err := p.parser(io.Discard, io.Discard)
	if err != nil {
		return nil, err
	}
	return parser.Model, nil
}

func (p Program) Reference() ([]byte, error) {
	model, err := p.Model()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "## %s\n\n%s\n\nCommon flags:\n\n", p.Name, model.Help)
	writeFlags(&b, model.Flags)
	for _, command := range model.Leaves(true) {
		writeCommand(&b, command)
	}
	return b.Bytes(), nil
}

func writeCommand(b *bytes.Buffer, command *kong.Node) {
	fmt.Fprintf(b, "### %s\n\n%s\n", command.FullPath(), command.Help)
	if command.Detail != "" {
		fmt.Fprintf(b, "\n%s\n", command.Detail)
	}
	usage := command.FullPath()
	var flags []*kong.Flag
	for at := command; at.Type != kong.ApplicationNode; at = at.Parent {
		flags = append(flags, at.Flags...)
	}
	usage += requiredOf(flags)
	for _, arg := range command.Positional {
		usage += " " + arg.Summary()
	}
	fmt.Fprintf(b, "\n    %s\n\n", usage)
	for _, arg := range command.Positional {
		fmt.Fprintf(b, "`%s`: %s\n\n", arg.Summary(), arg.Help)
	}
	writeFlags(b, flags)
}

// requiredOf returns a command's required flags. From a group of exclusive flags, one
// is required.
func requiredOf(flags []*kong.Flag) (usage string) {
	said := map[string]bool{}
	for _, f := range flags {
		if !f.Required || f.Hidden || said[f.Name] {
			continue
		}
		var either []string
		for _, other := range flags {
			if other == f || slices.ContainsFunc(f.Xor, func(group string) bool { return slices.Contains(other.Xor, group) }) {
				said[other.Name] = true
				either = append(either, "--"+other.Name+valueOf(other))
			}
		}
		if len(either) == 1 {
			usage += " " + either[0]
			continue
		}
		usage += " (" + strings.Join(either, " | ") + ")"
	}
	return usage
}

func writeFlags(b *bytes.Buffer, flags []*kong.Flag) {
	rows := 0
	for _, f := range flags {
		if f.Hidden {
			continue
		}
		if rows++; rows == 1 {
			b.WriteString("| flag | environment | default | meaning |\n|---|---|---|---|\n")
		}
		name := "--" + f.Name
		if f.Short != 0 {
			name = "-" + string(f.Short) + ", " + name
		}
		var envs []string
		for _, env := range f.Envs {
			envs = append(envs, "`"+env+"`")
		}
		fmt.Fprintf(b, "| `%s%s` | %s | %s | %s |\n", name, valueOf(f), strings.Join(envs, ", "), defaultOf(f), cell(f.Help))
	}
	if rows > 0 {
		b.WriteString("\n")
	}
}

// valueOf returns a flag's value as it is written behind the name.
func valueOf(f *kong.Flag) string {
	switch {
	case f.IsBool():
		return ""
	case f.Enum != "":
		return "=" + strings.Join(f.EnumSlice(), "\\|")
	case f.PlaceHolder != "":
		return "=" + f.PlaceHolder
	}
	return "=" + strings.ToUpper(f.Target.Type().Name())
}

func defaultOf(f *kong.Flag) string {
	switch {
	case f.IsBool() && f.Default == "true" && f.Tag.Negatable != "":
		return "on; `--no-" + f.Name + "` turns it off"
	case f.Required:
		return "required"
	case f.Default == "":
		return ""
	}
	return "`" + cell(f.Default) + "`"
}

func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(text)
}

// ErrOldReference reports a document that differs from the flags.
var ErrOldReference = errors.New("the reference differs from the flags; go generate ./cmd/... updates it")

// CheckReference compares the program's part of a document, between two marks, with
// the flags. If write is true, it replaces that part.
func (p Program) CheckReference(document string, write bool) error {
	want, err := p.Reference()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(document)
	if err != nil {
		return err
	}
	begin, end := fmt.Appendf(nil, "<!-- begin %s -->\n", p.Name), fmt.Appendf(nil, "<!-- end %s -->\n", p.Name)
	before, rest, found := bytes.Cut(text, begin)
	got, after, ends := bytes.Cut(rest, end)
	switch {
	case !found || !ends:
		return fmt.Errorf("%s has no marks of %s", document, p.Name)
	case bytes.Equal(got, want):
		return nil
	case !write:
		return fmt.Errorf("%s: %w", document, ErrOldReference)
	}
	return os.WriteFile(document, bytes.Join([][]byte{before, begin, want, end, after}, nil), 0o644)
}
