"""Every way to call tq, as cases. Each case has a queue with the name of the case, and leaves no live job there. The
checker checks all cases together."""
import traceback

from caller import Caller

CASES = []


def case(function):
    """A case is called with the scene, a caller and its queue."""
    CASES.append(function)
    return function


def same(got, expected, what):
    assert got == expected, f"{what}: {got!r} instead of {expected!r}"


def run(scene, only=""):
    with open(__file__.replace("cases.py", "functions.sql"), encoding="utf-8") as file:
        scene.query(file.read())
    for function in CASES:
        name = function.__name__
        if only.replace("_", " ") not in f"={name}=".replace("_", " "):
            continue
        caller = Caller(scene, name)
        try:
            function(scene, caller, name)
            scene.say(True, name.replace("_", " "))
        except Exception as error:
            scene.say(False, name.replace("_", " "), f"{type(error).__name__}: {error}")
            traceback.print_exc()
        finally:
            caller.close()
