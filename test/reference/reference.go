// Package reference writes the list of a program's flags in docs/reference.md.
package reference

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"ahprelay/test/document"

	"github.com/alecthomas/kong"
)

var update = flag.Bool("update", false, "write docs/reference.md")

// Check compares the program's part of a document with the program's flags. With -update, it
// replaces that part.
func Check(t *testing.T, file string, program *kong.Application) {
	t.Helper()
	want, command := of(program), "go generate ./cmd/"+program.Name
	if *update {
		if err := document.Replace(file, command, want); err != nil {
			t.Error(err)
		}
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, want) {
		t.Errorf("%s differs from the program's flags; %s updates it", file, command)
	}
}

// of returns a program's part.
func of(program *kong.Application) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "## %s\n\n%s\n\nCommon flags:\n\n", program.Name, program.Help)
	writeFlags(&b, program.Flags)
	for _, command := range program.Leaves(true) {
		writeCommand(&b, command)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
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
