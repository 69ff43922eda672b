"""`bertfeat help`: the help of a command."""

from __future__ import annotations

import click


@click.command(name="help")
@click.argument("names", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def command(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of a command, as its --help does: `bertfeat help probe fit`."""
    assert ctx.parent is not None
    context = ctx.parent
    for name in names:
        group = context.command
        if not isinstance(group, click.Group):
            raise click.UsageError(f"{context.command_path} has no commands, and {name!r} is not one", context)
        _, found, _ = group.resolve_command(context, [name])
        assert found is not None
        context = click.Context(found, context, info_name=name, **found.context_settings)
    click.echo(context.get_help())
