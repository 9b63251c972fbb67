package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// A place is a position in a command line: behind a command, or behind the program's
// name.
type place struct {
	path     string // "" behind the program's name
	commands []*kong.Node
	flags    []*kong.Flag
}

func placesOf(app *kong.Application) (places []place) {
	var visit func(node *kong.Node, above []*kong.Flag)
	visit = func(node *kong.Node, above []*kong.Flag) {
		p := place{path: pathOf(node)}
		for _, flag := range append(slices.Clone(above), node.Flags...) {
			if !flag.Hidden {
				p.flags = append(p.flags, flag)
			}
		}
		for _, child := range node.Children {
			if !child.Hidden {
				p.commands = append(p.commands, child)
			}
		}
		places = append(places, p)
		for _, child := range p.commands {
			visit(child, p.flags)
		}
	}
	visit(app.Node, nil)
	return places
}

func (p *place) words() (words []string) {
	for _, c := range p.commands {
		words = append(words, c.Name)
	}
	for _, f := range p.flags {
		words = append(words, "--"+f.Name)
	}
	return words
}

func enumOf(flag *kong.Flag) []string {
	if flag.Enum == "" {
		return nil
	}
	return slices.DeleteFunc(strings.Split(flag.Enum, ","), func(s string) bool { return s == "" })
}

// completion returns a shell's script, which completes commands, flags and their listed
// values. Bash and zsh complete all other words as file names, and fish only flags' values.
func completion(app *kong.Application, shell string) string {
	if shell == "fish" {
		return fishCompletion(app)
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	name := "_" + strings.ReplaceAll(app.Name, "-", "_")
	if shell == "zsh" {
		line("#compdef %s", app.Name)
		line("%s() {\n  local -a given=(\"${words[@]:1:$((CURRENT-2))}\")\n  local cur=${words[CURRENT]} prev=${words[CURRENT-1]}", name)
	} else {
		line("%s() {\n  local -a given=(\"${COMP_WORDS[@]:1:COMP_CWORD-1}\")\n  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}", name)
	}
	line("  local at='' may='' w")
	line("  for w in \"${given[@]}\"; do\n    case \"$at $w\" in")
	places := placesOf(app)
	for _, p := range places {
		for _, c := range p.commands {
			line("      '%s %s') at='%s' ;;", p.path, c.Name, pathOf(c))
		}
	}
	line("    esac\n  done")
	line("  case \"$at\" in")
	for _, p := range places {
		line("    '%s') may='%s'", p.path, strings.Join(p.words(), " "))
		line("      case \"$prev\" in")
		for _, f := range p.flags {
			if enum := enumOf(f); len(enum) > 0 {
				line("        --%s) may='%s' ;;", f.Name, strings.Join(enum, " "))
			} else if !f.IsBool() {
				line("        --%s) may='' ;;", f.Name)
			}
		}
		line("      esac ;;")
	}
	line("  esac")
	if shell == "zsh" {
		line("  if [[ -n $may ]]; then compadd -- ${=may}; else _files; fi\n}")
		line("if [[ $funcstack[1] == _* ]]; then %s \"$@\"; else compdef %s %s; fi", name, name, app.Name)
	} else {
		line("  COMPREPLY=($(compgen -W \"$may\" -- \"$cur\"))\n}\ncomplete -o default -F %s %s", name, app.Name)
	}
	return b.String()
}

func fishQuote(text string) string {
	return "'" + strings.NewReplacer(`\`, `\\`, `'`, `\'`, "\n", " ").Replace(text) + "'"
}

// brief returns a help text's first sentence.
func brief(help string) string {
	first, _, _ := strings.Cut(help, ". ")
	return strings.TrimSuffix(first, ".")
}

func fishCompletion(app *kong.Application) string {
	var b strings.Builder
	fmt.Fprintf(&b, "complete -c %s -f\n", app.Name)
	for _, p := range placesOf(app) {
		var names []string
		for _, c := range p.commands {
			names = append(names, c.Name)
		}
		here := "true"
		for _, part := range strings.Fields(p.path) {
			here += "; and __fish_seen_subcommand_from " + part
		}
		if len(names) > 0 {
			free := here + "; and not __fish_seen_subcommand_from " + strings.Join(names, " ")
			for _, c := range p.commands {
				fmt.Fprintf(&b, "complete -c %s -n %s -a %s -d %s\n", app.Name, fishQuote(free), c.Name, fishQuote(brief(c.Help)))
			}
		}
		for _, f := range p.flags {
			if p.path != "" && slices.Contains(app.Flags, f) {
				continue // the entry for the program itself completes this flag everywhere
			}
			fmt.Fprintf(&b, "complete -c %s -n %s -l %s -d %s", app.Name, fishQuote(here), f.Name, fishQuote(brief(f.Help)))
			if enum := enumOf(f); len(enum) > 0 {
				fmt.Fprintf(&b, " -x -a %s", fishQuote(strings.Join(enum, " ")))
			} else if !f.IsBool() {
				fmt.Fprint(&b, " -r -F")
			}
			b.WriteByte('\n')
		}
	}
	return b.String()
}
