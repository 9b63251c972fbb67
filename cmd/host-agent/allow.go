package main

import (
	"fmt"

	"ahprelay/auth"
	"ahprelay/auth/gate"
	"ahprelay/hostagent"
)

// allowFlags say what clients may do at most, whatever their tokens and the
// relay say.
type allowFlags struct {
	Allow        auth.Access         `help:"What clients may do at most, whatever the relay says: look, talk, approve, operate or own (see relay token client --help)." enum:"look,talk,approve,operate,own,read,write,admin" default:"own"`
	ApproveOnly  []string            `help:"Subjects who may approve what agents ask for, and operate; * stands for any characters. May be given several times. Nobody else may do more than talk, and reach files, whatever the relay says. Default: all whose tokens let them." placeholder:"SUBJECT" sep:"none"`
	AllowChannel []string            `help:"Channels, and files, that clients may reach at most; * stands for any characters. May be given several times. Default: all." placeholder:"URI" sep:"none"`
	HostFiles    hostagent.HostFiles `help:"Whether the host's files are those of this machine: then symbolic links are followed before a file is judged by the channels of a token or of --allow-channel. auto says so of commands, Unix sockets and loopback addresses." enum:"auto,shared,separate" default:"auto"`
	AllowFiles   bool                `help:"With --allow read, or --allow-channel: the files in the working directories of sessions that a client may see, too, if its token allows them. Others need to be named by --allow-channel."`
	AllowMethod  []string            `help:"Methods that clients may call at most; * stands for any characters. May be given several times. Default: all." placeholder:"NAME"`
	Reverse      bool                `help:"Let the host ask clients for the client's own files. --no-reverse refuses that in their place." default:"true" negatable:""`
}

// Validate refuses what is no pattern.
func (f *allowFlags) Validate() error {
	if err := auth.CheckPatterns("channel", f.AllowChannel); err != nil {
		return fmt.Errorf("--allow-channel: %w", err)
	}
	if err := auth.CheckPatterns("method", f.AllowMethod); err != nil {
		return fmt.Errorf("--allow-method: %w", err)
	}
	for _, subject := range f.ApproveOnly {
		if err := auth.CheckSubject(subject); err != nil {
			return fmt.Errorf("--approve-only: %w", err)
		}
	}
	return nil
}

func (f *allowFlags) policy() *gate.Policy {
	// Of files, the token has a say of its own.
	policy := gate.NewPolicy(f.Allow, f.AllowChannel, f.AllowMethod, true)
	if f.AllowFiles {
		policy = policy.WithFolders()
	}
	return &policy
}
