package cli

import (
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/alecthomas/kong"
)

// Manual prints a program's manual page and shell completion, made from the flags.
type Manual struct {
	Man        manCmd        `cmd:"" hidden:"" help:"Print the manual page."`
	Completion completionCmd `cmd:"" help:"Print shell completion: source <(… completion bash)."`

	PrintVersion versionCmd `cmd:"" name:"version" help:"Print the version. With --check, look for a newer release."`
}

type manCmd struct{}

// Run prints the manual page, for man(1).
func (manCmd) Run(k *kong.Context) error {
	_, err := io.WriteString(k.Stdout, manPage(k.Model))
	return err
}

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (c completionCmd) Run(k *kong.Context) error {
	_, err := io.WriteString(k.Stdout, completion(k.Model, c.Shell))
	return err
}

func roff(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\\':
			b.WriteString(`\e`)
		case r == '-':
			b.WriteString(`\-`)
		case r == '\n':
			b.WriteByte(' ')
		case r > unicode.MaxASCII:
			fmt.Fprintf(&b, `\[u%04X]`, r)
		default:
			b.WriteRune(r)
		}
	}
	text = b.String()
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}

// manPage returns a program's manual page (man(7)).
func manPage(app *kong.Application) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(`.TH %s 1 "" "%s %s"`, strings.ToUpper(app.Name), app.Name, Version)
	first, _, _ := strings.Cut(app.Help, ". ")
	line(".SH NAME\n%s \\- %s", roff(app.Name), roff(strings.TrimSuffix(first, ".")))
	line(".SH SYNOPSIS\n.B %s\n.I command\n[\\fIflags\\fR]", roff(app.Name))
	line(".SH DESCRIPTION\n%s", roff(app.Help))
	line(".SH COMMANDS")
	for _, node := range app.Leaves(true) {
		usage := node.FullPath()
		for _, arg := range node.Positional {
			usage += " " + arg.Summary()
		}
		line(".SS %s", roff(usage))
		line("%s", roff(node.Help))
		for _, arg := range node.Positional {
			if arg.Help != "" {
				line(".TP\n.I %s\n%s", roff(arg.Summary()), roff(arg.Help))
			}
		}
		manFlags(line, node.Flags)
	}
	line(".SH FLAGS OF ALL COMMANDS")
	manFlags(line, app.Flags)
	return b.String()
}

func manFlags(line func(string, ...any), flags []*kong.Flag) {
	for _, flag := range flags {
		if flag.Hidden {
			continue
		}
		name := `\fB` + roff("--"+flag.Name) + `\fR`
		if !flag.IsBool() {
			name += `=\fI` + roff(flag.FormatPlaceHolder()) + `\fR`
		}
		line(".TP\n%s", name)
		line("%s", roff(flag.Help))
		if len(flag.Envs) > 0 {
			line("Environment: %s.", roff(strings.Join(flag.Envs, ", ")))
		}
	}
}

// pathOf returns a command's words, without the program's name.
func pathOf(node *kong.Node) string {
	if node.Parent == nil || node.Type == kong.ApplicationNode {
		return ""
	}
	return strings.TrimSpace(pathOf(node.Parent) + " " + node.Name)
}
