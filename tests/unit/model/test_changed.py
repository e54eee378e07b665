from podwire.model.changed import Changed


def test_changes_of_one_object_are_equal() -> None:
    assert {Changed("Pod", "shop/web"), Changed("Pod", "shop/web"), Changed("Node", "shop/web")} == {
        Changed("Node", "shop/web"),
        Changed("Pod", "shop/web"),
    }
    assert str(Changed("Pod", "shop/web")) == "Pod shop/web"
