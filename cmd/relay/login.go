package main

import "errors"

// movedCmd stands for a command that ahp-connect has now.
type movedCmd struct {
	Args []string `arg:"" optional:"" passthrough:""`
}

// Run names the program that has the command now.
func (*movedCmd) Run() error {
	return errors.New("this command has moved: use ahp-connect login, ahp-connect access or ahp-connect logout")
}
